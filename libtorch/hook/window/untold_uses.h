// UntoldUses has the latest uses of a window's tensors, in their order, that
// the Runtime has not been told of. They are told many at a time, as a use
// costs an operation little.
//
// The class is thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads/lock_order.h"
#include "terrace/tensor.h"

namespace terrace {

class UntoldUses {
 public:
  // Adds a use of a tensor with so many bytes; several in a row are one.
  // Returns true when it is time to tell what there is: that is many uses, or
  // `most_bytes` of tensors.
  bool Add(TensorId tensor, int64_t size_bytes, int64_t most_bytes);
  // Hands all of them over.
  std::vector<TensorId> Take();

 private:
  OrderedMutex mutex_{LockRank::kUntoldUses};
  std::vector<TensorId> uses_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
