#include "optimizer/step/step_input.h"

#include <cmath>
#include <utility>

namespace terrace {
namespace {

// The inverse of the loss scale times the clip factor:
// 1 / (scale * max(1, (norm/scale + 1e-6) / clip)); a norm that is NaN gives
// NaN, as in PyTorch.
float GradientMultiplier(double squared_norm, double scale, double clip) {
  double divisor = scale;
  if (clip > 0) {
    const double ratio = (std::sqrt(squared_norm) / scale + 1e-6) / clip;
    if (!(ratio <= 1)) divisor *= ratio;
  }
  return static_cast<float>(1.0 / divisor);
}

}  // namespace

void StepInput::Set(StepSettings settings,
                    absl::Span<const ParameterData> parameters,
                    Staging* staging) {
  settings_ = std::move(settings);
  parameters_.assign(parameters.begin(), parameters.end());
  update_.parameters = parameters_;
  update_.staging = staging;
}

// Most parameters share their scalars with the one before.
void StepInput::BeginStep(absl::Span<const ParameterSpec> specs,
                          absl::Span<const int64_t> parameter_steps) {
  scalars_.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const AdamOptions& options = settings_.group(specs[i].group);
    const bool same = i > 0 && parameter_steps[i] == parameter_steps[i - 1] &&
                      options == settings_.group(specs[i - 1].group);
    scalars_[i] = same ? scalars_[i - 1]
                       : MakeAdamScalars(options, parameter_steps[i] + 1);
  }
  update_.scalars = scalars_;
  update_.gradient_multiplier = 1;
  gradient_norm_ = 0;
}

// Kernels that run look at other parameters.
void StepInput::SetGradient(size_t parameter, const void* gradient,
                            DType dtype) {
  parameters_[parameter].gradient = gradient;
  parameters_[parameter].gradient_dtype = dtype;
}

void StepInput::SetSquaredNorm(double squared) {
  gradient_norm_ = std::sqrt(squared) / settings_.loss_scale;
  update_.gradient_multiplier = GradientMultiplier(
      squared, settings_.loss_scale, settings_.max_gradient_norm);
}

bool StepInput::NeedsNorm() const {
  return settings_.max_gradient_norm > 0 || settings_.skip_nonfinite ||
         settings_.loss_scale != 1;
}

std::vector<GradientData> StepInput::Gradients(
    absl::Span<const ParameterSpec> specs) const {
  std::vector<GradientData> gradients;
  gradients.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    gradients.push_back({parameters_[i].gradient, parameters_[i].gradient_dtype,
                         specs[i].count, parameters_[i].device});
  }
  return gradients;
}

}  // namespace terrace
