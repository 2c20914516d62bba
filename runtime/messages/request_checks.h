// What a runtime refuses before it does anything, whatever it is made of: by
// name, with the values. Thread-safe, as they look at their arguments alone.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

// InvalidArgument: no name, no bytes, or a number in the step that is none.
absl::Status CheckSpec(const TensorSpec& spec);

// InvalidArgument: more tensors than slots, or none; one that is unknown
// (`size_of` is negative), too large for a slot, or named twice.
absl::Status CheckWants(absl::Span<const Want> wants, int slots,
                        int64_t slot_bytes,
                        absl::FunctionRef<int64_t(TensorId)> size_of);

// InvalidArgument: a queue of bytes has no such lane.
absl::Status CheckLane(int lane);

// InvalidArgument: fewer than no bytes.
absl::Status CheckHeldBytes(int64_t bytes);

// FailedPrecondition: `open` is the step that is open; none: no step is.
absl::Status CheckStepBegins(std::optional<int64_t> open);
// FailedPrecondition: no step is open, or another one than `named`; none
// named: any will do.
absl::Status CheckStepEnds(std::optional<int64_t> open,
                           std::optional<int64_t> named);

}  // namespace terrace
