// How much memory the weights get, and how it is shared out: the hook's window,
// which operations use, and what is on its way. Plain numbers, no LibTorch.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/model_shape.h"

namespace infer_gpt {

struct WeightPlan {
  int64_t weight_bytes = 0;
  // Twice what one operation takes: its weight and its bias, while those of the
  // next one come.
  int64_t minimum_bytes = 0;
  int64_t budget_bytes = 0;
  bool budget_raised = false;  // a share that was less than the minimum
  int64_t window_bytes = 0;
};

// InvalidArgument: a budget in bytes below the minimum, which is named.
absl::StatusOr<WeightPlan> PlanWeights(const train_gpt::ModelShape& shape,
                                       train_gpt::Dtype dtype,
                                       const train_gpt::MemoryBudget& budget);

}  // namespace infer_gpt
