// What went wrong for a queue, on its way to the customer. A value; thread-safe
// as one.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {

// An error, and the queue whose step is to hear of it; -1: none.
struct QueueError {
  int64_t queue = -1;
  absl::Status status;
  // Of its write-back, which has failed: what to call SetUnsaid for.
  const Tensor* unwritten = nullptr;
};

}  // namespace terrace
