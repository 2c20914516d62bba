// Operations wait at the gate before they take their bytes, since updates of
// parameters may go on beside the program (libtorch/step/late). The hook asks
// the gate before it pins anything: an operation that waits must not keep room
// from the update that it waits for.
//
// The gate is thread-safe.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>

#include "absl/status/status.h"

namespace terrace {

class OperationGate {
 public:
  virtual ~OperationGate() = default;

  // Blocks until the operands are as the operation is to find them. An operand
  // that cannot become so ends the operation, as it looks at its bytes.
  virtual void AwaitOperands(const at::RecordFunction& function) = 0;
  // Does the same for a caller that takes a storage's address itself. Fails
  // with FailedPrecondition when the update that it waited for failed.
  virtual absl::Status Await(const c10::Storage& storage, bool is_written) = 0;
  // Returns whether Await would neither wait nor fail. Code inside an operation
  // asks this, as the operation has bytes that updates may wait for.
  virtual bool IsFree(const c10::Storage& storage, bool is_written) = 0;
  // Waits until no update is left to wait for, however the updates ended.
  virtual void AwaitEverything() = 0;
};

}  // namespace terrace
