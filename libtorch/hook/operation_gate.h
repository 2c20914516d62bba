// What operations wait for before they take their bytes: updates of parameters
// that go on beside the program (libtorch/step/late). The hook asks it before
// it pins anything, since what waits must not keep room from what it waits for.
//
// Thread-safe.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>

#include "absl/status/status.h"

namespace terrace {

class OperationGate {
 public:
  virtual ~OperationGate() = default;

  // Blocks until the operation finds its operands as they are to be. What they
  // cannot be ends the operation, as it looks at its bytes.
  virtual void AwaitOperands(const at::RecordFunction& function) = 0;
  // The same for what takes a storage's address itself. FailedPrecondition:
  // what it waited for failed.
  virtual absl::Status Await(const c10::Storage& storage, bool is_written) = 0;
  // Whether Await would neither wait nor fail. For what is inside an operation,
  // which has bytes that the others may wait for.
  virtual bool IsFree(const c10::Storage& storage, bool is_written) = 0;
  // Whether something waits now, here or for the end of all.
  virtual bool IsAwaited() = 0;
  // Until there is nothing to wait for, however it ended.
  virtual void AwaitEverything() = 0;
};

}  // namespace terrace
