#include "examples/infer_gpt/weight_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace infer_gpt {
namespace {

constexpr int64_t kBlockBytes = 4096;

// In whole blocks, and one more.
int64_t InMemory(int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes + kBlockBytes;
}

}  // namespace

absl::StatusOr<WeightPlan> PlanWeights(const train_gpt::ModelShape& shape,
                                       train_gpt::Dtype dtype,
                                       const train_gpt::MemoryBudget& budget) {
  const int64_t element = dtype == train_gpt::Dtype::kFloat32 ? 4 : 2;
  WeightPlan plan;
  int64_t everything = 0;
  std::map<std::string, int64_t> operations;  // a weight and its bias are one's
  for (const auto& parameter : train_gpt::ParameterShapes(shape)) {
    const int64_t bytes = parameter.count() * element;
    plan.weight_bytes += bytes;
    everything += InMemory(bytes);
    const std::string name =
        parameter.name.substr(0, parameter.name.rfind('.'));
    operations[name] += InMemory(bytes);
    plan.minimum_bytes = std::max(plan.minimum_bytes, 2 * operations[name]);
  }
  everything += plan.minimum_bytes / 2;  // free room may lie in parts
  plan.budget_bytes = budget.Of(plan.weight_bytes);
  if (plan.budget_bytes < plan.minimum_bytes) {
    if (budget.bytes > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--memory-budget ", budget.bytes, " is below the minimum of ",
          plan.minimum_bytes, ": an operation takes ", plan.minimum_bytes / 2,
          " bytes of weights"));
    }
    plan.budget_raised = true;
    plan.budget_bytes = plan.minimum_bytes;
  }
  if (plan.budget_bytes >= everything) {
    plan.budget_bytes = plan.window_bytes = everything;
    return plan;
  }
  // A quarter is for what is written back while more comes.
  plan.window_bytes =
      std::max(plan.minimum_bytes / 2, plan.budget_bytes / 4 * 3);
  return plan;
}

}  // namespace infer_gpt
