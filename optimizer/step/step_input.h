// What a step works on, from its first attempt to its last: settings,
// parameters, and what kernels need of them.
//
// One thread at a time; constant while kernels run.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer_kernels.h"
#include "optimizer/step/chunk_update.h"
#include "optimizer/step/staging.h"
#include "optimizer/step/step_check.h"
#include "terrace/optimizer.h"

namespace terrace {

class StepInput {
 public:
  // Both have passed CheckStep. `staging` is null where no parameter with a
  // gradient is on a device.
  void Set(StepSettings settings, absl::Span<const ParameterData> parameters,
           Staging* staging);
  // Of a new step: each parameter's scalars by its own count of steps, and a
  // norm that is not known.
  void BeginStep(absl::Span<const ParameterSpec> specs,
                 absl::Span<const int64_t> parameter_steps);
  // A gradual step has the gradient of a parameter.
  void SetGradient(size_t parameter, const void* gradient, DType dtype);
  // The sum of squares of all gradients as they came.
  void SetSquaredNorm(double squared);

  // Whether the step needs its norm before it updates anything.
  bool NeedsNorm() const;
  // The gradients of the parameters, one for each.
  std::vector<GradientData> Gradients(
      absl::Span<const ParameterSpec> specs) const;

  const StepSettings& settings() const { return settings_; }
  absl::Span<const ParameterData> parameters() const { return parameters_; }
  double gradient_norm() const { return gradient_norm_; }
  const UpdateStep& update() const { return update_; }

 private:
  StepSettings settings_;
  std::vector<ParameterData> parameters_;
  std::vector<AdamScalars> scalars_;  // by parameter
  double gradient_norm_ = 0;
  UpdateStep update_;  // refers to the above
};

}  // namespace terrace
