// Which tensors the groups of open queues want, and how often: what tells
// without a look at any group that a tensor may not go. Mover only.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

class WantedTensors {
 public:
  // A group's wants, from its push until it is ready, has failed, or its queue
  // is closed.
  void Add(absl::Span<const Want> wants) {
    for (const Want& want : wants) ++counts_[want.tensor.value];
  }
  void Remove(absl::Span<const Want> wants) {
    for (const Want& want : wants) {
      const auto found = counts_.find(want.tensor.value);
      TERRACE_CHECK(found != counts_.end());
      if (--found->second == 0) counts_.erase(found);
    }
  }
  bool Contains(TensorId tensor) const {
    return counts_.contains(tensor.value);
  }

  friend bool operator==(const WantedTensors&, const WantedTensors&) = default;

 private:
  absl::flat_hash_map<int64_t, int> counts_;  // none is 0
};

}  // namespace terrace
