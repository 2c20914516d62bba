#include "optimizer/state/step_counts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

bool IsCount(int64_t steps) { return steps >= 0 && steps <= kMostSteps; }

}  // namespace

void StepCounts::Resize(size_t parameters) {
  by_parameter_.resize(parameters, 0);
  masters_written_.resize(parameters, 0);
}

void StepCounts::Clear() {
  step_ = 0;
  std::fill(by_parameter_.begin(), by_parameter_.end(), 0);
  std::fill(masters_written_.begin(), masters_written_.end(), 0);
}

void StepCounts::Forget(int parameter) {
  const auto index = static_cast<size_t>(parameter);
  by_parameter_[index] = 0;
  masters_written_[index] = 0;
}

absl::Status StepCounts::Assign(absl::Span<const ParameterSpec> specs,
                                int64_t step,
                                absl::Span<const int64_t> by_parameter) {
  if (by_parameter.size() != specs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps of ", by_parameter.size(),
                     " parameters given, the optimizer has ", specs.size()));
  }
  if (!IsCount(step)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step is ", step, ", and may be up to ", kMostSteps));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (IsCount(by_parameter[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step of parameter '", specs[i].name, "' is ",
                     by_parameter[i], ", and may be up to ", kMostSteps));
  }
  step_ = step;
  by_parameter_.assign(by_parameter.begin(), by_parameter.end());
  return absl::OkStatus();
}

void StepCounts::CountStep(absl::Span<const ParameterSpec> specs,
                           absl::Span<const ParameterData> parameters) {
  step_ = std::min(step_ + 1, kMostSteps);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters[i].gradient == nullptr) continue;
    by_parameter_[i] = std::min(by_parameter_[i] + 1, kMostSteps);
    masters_written_[i] = specs[i].count;
  }
}

absl::Status StepCounts::CheckMasters(
    absl::Span<const ParameterSpec> specs) const {
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t written = masters_written_[i];
    if (written == 0 || written == specs[i].count) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", specs[i].name, "' has a master of which ", written,
        " of ", specs[i].count, " elements were written"));
  }
  return absl::OkStatus();
}

}  // namespace terrace
