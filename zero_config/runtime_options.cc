#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "terrace/zero_config.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

constexpr int64_t kLeastChunkBytes = 64 << 10;
constexpr int64_t kMostChunkBytes = 8 << 20;
// Of a state that stays in memory, beside which it is: an eighth, within these.
constexpr int64_t kLeastWindowBytes = 4 << 20;
constexpr int64_t kMostWindowBytes = 128 << 20;
constexpr int64_t kLeastBudgetBytes = 64 << 10;  // the least of any Runtime
// A budget that every plan fits.
constexpr int64_t kPlentyBytes = int64_t{1} << 60;

// sub_group_size elements of state, as far as chunks can be that small.
int64_t ChunkBytes(const ZeroConfigSettings& settings) {
  if (!settings.update.sub_group_size) return kMostChunkBytes;
  const int64_t element_bytes =
      settings.parameter_dtype == DType::kFloat32 ? 8 : 12;
  const int64_t elements = std::min(*settings.update.sub_group_size,
                                    kMostChunkBytes / element_bytes);
  return std::clamp(elements * element_bytes + kTensorHeaderBytes,
                    kLeastChunkBytes, kMostChunkBytes);
}

// All chunks and the window at once. A smaller budget may mean smaller chunks
// and so more headers; the second plan is made within the first one's needs.
absl::StatusOr<int64_t> WholeStateBytes(
    absl::Span<const ParameterSpec> parameters,
    const OptimizerOptions& options) {
  int64_t budget = kPlentyBytes;
  for (int round = 0; round < 3; ++round) {
    TERRACE_ASSIGN_OR_RETURN(
        const OptimizerPlan plan,
        OffloadedOptimizer::Plan(parameters, options, budget));
    const int64_t need = plan.disk_bytes + plan.window_bytes;
    if (round > 0 && need <= budget) break;
    budget = need;
  }
  return budget;
}

}  // namespace

absl::StatusOr<ZeroConfigOptions> OptionsFromZeroConfig(
    const ZeroConfigSettings& settings,
    absl::Span<const ParameterSpec> parameters, int64_t budget_bytes) {
  if (!settings.adam) {
    return absl::InvalidArgumentError(
        "optimizer: not in the configuration; give it there, or set it in the "
        "settings");
  }
  if (budget_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a budget of ", budget_bytes, " bytes; allowed: at least 0"));
  }
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.dtype == settings.parameter_dtype) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter.name, "' is ", DTypeName(parameter.dtype),
        ", bf16.enabled and fp16.enabled ask for ",
        DTypeName(settings.parameter_dtype)));
  }
  ZeroConfigOptions options;
  options.optimizer.adam = *settings.adam;
  options.optimizer.max_gradient_norm = settings.max_gradient_norm;
  options.optimizer.skip_nonfinite = settings.skip_nonfinite;
  options.optimizer.chunk_bytes = ChunkBytes(settings);
  options.runtime.paths = settings.nvme_paths;
  options.runtime.daemon = settings.daemon;
  if (settings.update.cpu_cores_share < 1) {
    TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
    const auto cores = static_cast<double>(topology.cpus.size());
    options.runtime.threads = std::max(
        1,
        static_cast<int>(std::floor(settings.update.cpu_cores_share * cores)));
  }
  const bool nvme = settings.offload_device == OffloadDevice::kNvme;
  if (budget_bytes == 0) {
    TERRACE_ASSIGN_OR_RETURN(
        const OptimizerPlan plan,
        OffloadedOptimizer::Plan(parameters, options.optimizer, kPlentyBytes));
    if (nvme) {
      budget_bytes = std::max(plan.state_bytes / 10, plan.minimum_budget_bytes);
    } else {
      options.optimizer.window_bytes =
          std::clamp(plan.state_bytes / 8, kLeastWindowBytes, kMostWindowBytes);
      TERRACE_ASSIGN_OR_RETURN(budget_bytes,
                               WholeStateBytes(parameters, options.optimizer));
    }
  }
  options.runtime.host_budget_bytes = std::max(budget_bytes, kLeastBudgetBytes);
  // Says so now if the pipeline cannot work in that.
  TERRACE_RETURN_IF_ERROR(
      OffloadedOptimizer::Plan(parameters, options.optimizer, budget_bytes)
          .status());
  return options;
}

}  // namespace terrace
