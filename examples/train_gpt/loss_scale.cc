#include "examples/train_gpt/loss_scale.h"

#include <algorithm>

namespace train_gpt {

LossScale::LossScale(const terrace::LossScaleSettings& settings)
    : settings_(settings),
      value_(settings.initial),
      left_(settings.hysteresis) {}

void LossScale::Update(bool overflowed) {
  const int64_t step = steps_++;
  if (!settings_.dynamic) return;
  if (overflowed) {
    overflowed_ = step;
    if (left_ > 1) {
      --left_;
    } else {
      value_ = std::max(value_ / 2, settings_.least);
    }
    return;
  }
  const bool grows = (step - overflowed_) % settings_.window == 0;
  if (settings_.consecutive_hysteresis || grows) left_ = settings_.hysteresis;
  if (grows) value_ *= 2;
}

}  // namespace train_gpt
