#include "examples/train_gpt/loss_scale.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace train_gpt {

LossScale::LossScale(const std::optional<terrace::LossScaleSettings>& settings)
    : settings_(settings.value_or(
          terrace::LossScaleSettings{.dynamic = false, .initial = 1})),
      state_{.value = settings_.initial,
             .hysteresis_left = settings_.hysteresis} {}

absl::Status LossScale::Update(bool skipped) {
  if (!settings_.dynamic) return absl::OkStatus();
  if (skipped) {
    state_.good_steps = 0;
    if (state_.hysteresis_left > 1) {
      --state_.hysteresis_left;
      return absl::OkStatus();
    }
    if (state_.value <= settings_.least) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "gradients are not finite at a loss scale of %.10g, the least that "
          "fp16.min_loss_scale allows",
          state_.value));
    }
    state_.value = std::max(state_.value / 2, settings_.least);
    return absl::OkStatus();
  }
  // The first good step, at the start or after a skipped one, does not count.
  const bool grows =
      state_.good_steps > 0 && state_.good_steps % settings_.window == 0;
  ++state_.good_steps;
  if (settings_.consecutive_hysteresis || grows) {
    state_.hysteresis_left = settings_.hysteresis;
  }
  if (grows) state_.value *= 2;
  return absl::OkStatus();
}

}  // namespace train_gpt
