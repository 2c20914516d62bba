// When each tensor was last touched, as a running number. One thread at a
// time.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "terrace/tensor.h"

namespace terrace {

class Recency {
 public:
  void Touch(TensorId tensor) { last_[tensor.value] = ++now_; }
  void Forget(TensorId tensor) { last_.erase(tensor.value); }

  // 0, older than all, for a tensor that was never touched.
  int64_t Last(TensorId tensor) const {
    const auto found = last_.find(tensor.value);
    return found == last_.end() ? 0 : found->second;
  }

 private:
  int64_t now_ = 0;
  absl::flat_hash_map<int64_t, int64_t> last_;
};

}  // namespace terrace
