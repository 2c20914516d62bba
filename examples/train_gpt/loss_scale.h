// fp16: by what losses are multiplied so that gradients are not too small for
// it, as DeepSpeed's loss scale has it.
#pragma once

#include <cstdint>

#include "terrace/zero_config.h"

namespace train_gpt {

class LossScale {
 public:
  explicit LossScale(const terrace::LossScaleSettings& settings);

  double value() const { return value_; }
  // After each step: whether its gradients were too large, so that it was
  // skipped.
  void Update(bool overflowed);

 private:
  const terrace::LossScaleSettings settings_;
  double value_;
  int64_t left_;  // of the hysteresis
  int64_t steps_ = 0;
  int64_t overflowed_ = -1;  // the last step that was
};

}  // namespace train_gpt
