// fp16: by what losses are multiplied so that gradients are not too small for
// it. It changes after each step as DeepSpeed 0.19.8 has it at stages 1 to 3.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "terrace/zero_config.h"

namespace train_gpt {

class LossScale {
 public:
  // What changes: a run that goes on begins with it.
  struct State {
    double value = 1;
    int64_t hysteresis_left = 1;
    int64_t good_steps = 0;  // since the last that was skipped

    friend bool operator==(const State&, const State&) = default;
  };

  // Without settings it is 1, and stays so.
  explicit LossScale(const std::optional<terrace::LossScaleSettings>& settings);

  double value() const { return state_.value; }
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

  // After each step: whether it was skipped, because gradients were too large.
  // FailedPrecondition: so they are at the least scale that is allowed.
  absl::Status Update(bool skipped);

 private:
  const terrace::LossScaleSettings settings_;
  State state_;
};

}  // namespace train_gpt
