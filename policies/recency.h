// The base of the policies that rank by recency, alone or after something
// else: when each resident was last touched, as a running number. One thread
// at a time.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "policies/eviction.h"
#include "terrace/tensor.h"

namespace terrace {

class RecencyPolicy : public EvictionPolicy {
 public:
  void OnResident(TensorId tensor) final { last_[tensor.value] = ++now_; }
  void OnTouch(TensorId tensor) final { last_[tensor.value] = ++now_; }
  void OnGone(TensorId tensor) final { last_.erase(tensor.value); }

 protected:
  // 0, older than all, for a tensor that is not resident.
  int64_t LastTouch(TensorId tensor) const {
    const auto found = last_.find(tensor.value);
    return found == last_.end() ? 0 : found->second;
  }

 private:
  int64_t now_ = 0;
  absl::flat_hash_map<int64_t, int64_t> last_;
};

}  // namespace terrace
