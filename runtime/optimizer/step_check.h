// What a caller may hand to a step, and what to the second attempt at one.
// Pure functions; `arguments` have a learning rate.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"

namespace terrace {

// InvalidArgument, naming the parameter or argument and its value.
absl::Status CheckStep(absl::Span<const ParameterSpec> specs,
                       const StepArguments& arguments,
                       absl::Span<const ParameterData> parameters);

// FailedPrecondition unless all that can be compared without reading a
// gradient is as `before`: both have passed CheckStep.
absl::Status CheckSameStep(const StepArguments& arguments_before,
                           absl::Span<const ParameterData> parameters_before,
                           const StepArguments& arguments,
                           absl::Span<const ParameterData> parameters);

}  // namespace terrace
