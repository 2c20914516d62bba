// UntoldUses has the latest uses of a window's tensors, in their order, that
// the Runtime has not been told of. They are told many at a time, as a use
// costs an operation little; each lane's by themselves.
//
// The class is thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/threads/lock_order.h"
#include "terrace/tensor.h"

namespace terrace {

// The lanes of a window's queue (terrace/byte_queue.h): the model's operations,
// and what the library copies, for updates above all, which may run beside
// them.
enum class UseLane : uint8_t { kOperations, kCopies };
inline constexpr size_t kUseLanes = 2;

class UntoldUses {
 public:
  // Adds a use of a tensor with so many bytes; several in a row of a lane are
  // one. Returns true when it is time to tell what there is: that is many uses,
  // or `most_bytes` of tensors.
  bool Add(UseLane lane, TensorId tensor, int64_t size_bytes,
           int64_t most_bytes);
  // Hands all of them over, by lane.
  using Uses = std::array<std::vector<TensorId>, kUseLanes>;
  Uses Take();

 private:
  OrderedMutex mutex_{LockRank::kUntoldUses};
  Uses uses_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
