// What a caller may hand to a step, and what to the second attempt at one.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"

namespace terrace {

// StepArguments with everything said, and of its own.
struct StepSettings {
  double loss_scale = 1;
  double max_gradient_norm = 0;
  bool skip_nonfinite = false;
  std::vector<AdamOptions> groups;  // at least one

  // Of a parameter of `group`, which CheckStep has seen.
  const AdamOptions& group(int group) const {
    return groups.size() == 1 ? groups.front()
                              : groups[static_cast<size_t>(group)];
  }
};

// InvalidArgument, naming the parameter or argument and its value.
absl::StatusOr<StepSettings> CheckStep(
    const OptimizerOptions& options, absl::Span<const ParameterSpec> specs,
    const StepArguments& arguments, absl::Span<const ParameterData> parameters);

// FailedPrecondition unless all that can be compared without reading a
// gradient is as `before`: both have passed CheckStep.
absl::Status CheckSameStep(const StepSettings& settings_before,
                           absl::Span<const ParameterData> parameters_before,
                           const StepSettings& settings,
                           absl::Span<const ParameterData> parameters);

// Of a gradual step. As if each of the parameters that may come, whose address
// is not null, had a gradient: for what asks which those are.
std::vector<ParameterData> WithAllGradients(
    absl::Span<const ParameterData> parameters);
// InvalidArgument: what needs all gradients first, or is given one.
absl::Status CheckGradualStep(const StepSettings& settings,
                              const StepArguments& arguments,
                              absl::Span<const ParameterData> parameters);
// InvalidArgument: not each of those that may come, once.
absl::Status CheckOrder(absl::Span<const ParameterSpec> specs,
                        absl::Span<const ParameterData> parameters,
                        absl::Span<const int> order);
// InvalidArgument: of a late step, one that is not there.
absl::Status CheckLateOrder(absl::Span<const ParameterSpec> specs,
                            absl::Span<const int> order);
// InvalidArgument: no gradient of one that may come and has not.
absl::Status CheckSupplied(absl::Span<const ParameterSpec> specs,
                           absl::Span<const ParameterData> parameters,
                           int parameter, const void* gradient, DType dtype);

}  // namespace terrace
