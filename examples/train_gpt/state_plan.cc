#include "examples/train_gpt/state_plan.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/train_gpt/requirements.h"
#include "examples/train_gpt/state_path.h"

namespace train_gpt {
namespace {

absl::Status Prefixed(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

// Of what --save adds to the disk at most. A new checkpoint is written beside
// the one before.
int64_t SaveBytes(const Flags& flags, int64_t parameters, int64_t state_bytes) {
  if (flags.save.empty()) return 0;
  std::error_code error;
  const bool goes_on =
      !flags.resume.empty() &&
      std::filesystem::equivalent(flags.save, flags.resume, error);
  const bool repeated = flags.save_every > 0 && flags.save_every < flags.steps;
  // Names, shapes and checksums: 1 MiB for each checkpoint, and more of more.
  const int64_t one =
      parameters * (flags.dtype == Dtype::kFloat32 ? 4 : 2) + state_bytes;
  return (one + one / 1000 + (1 << 20)) * (repeated && !goes_on ? 2 : 1);
}

}  // namespace

absl::StatusOr<OffloadPlan> PlanOffload(const Flags& flags) {
  const int64_t element = flags.dtype == Dtype::kFloat32 ? 4 : 2;
  std::vector<terrace::ParameterSpec> specs;
  for (const ParameterShape& shape : ParameterShapes(flags.shape)) {
    specs.push_back({shape.name, DTypeOf(flags.dtype), shape.count()});
  }
  OffloadPlan result;
  result.optimizer.adam = flags.adam;
  result.optimizer.max_gradient_norm = flags.clip;
  result.optimizer.skip_nonfinite = flags.skip_nonfinite;
  result.optimizer.chunk_bytes = flags.chunk_bytes;
  result.schedule = flags.schedule;
  const int64_t parameters = ParameterCount(flags.shape);
  result.budget_bytes = flags.budget.Of(parameters * (element == 4 ? 8 : 12));
  if (flags.budget.bytes == 0) {
    constexpr int64_t kPlenty = int64_t{1} << 60;
    const auto any =
        terrace::OffloadedOptimizer::Plan(specs, result.optimizer, kPlenty);
    if (!any.ok()) return any.status();
    result.budget_raised = result.budget_bytes < any->minimum_budget_bytes;
    result.budget_bytes =
        std::max(result.budget_bytes, any->minimum_budget_bytes);
  }
  auto plan = terrace::OffloadedOptimizer::Plan(specs, result.optimizer,
                                                result.budget_bytes);
  if (!plan.ok()) {
    return Prefixed(flags.tiers.empty() ? "--memory-budget" : "--tier",
                    plan.status());
  }
  result.plan = *plan;
  result.joined = flags.joined();
  if (result.joined) result.plan.disk_bytes += 2 * parameters * element;
  result.verify_bytes =
      flags.verify ? parameters * (element == 2 ? 2 + 4 : 4) : 0;
  if (flags.verify) result.scratch = ScratchDirectory(flags.nvme_paths);
  result.save = flags.save;
  result.save_bytes = SaveBytes(flags, parameters, plan->state_bytes);
  result.paths = flags.nvme_paths;
  result.runtime.tiers = flags.tiers;
  if (flags.tiers.empty()) {
    result.runtime.host_budget_bytes = result.budget_bytes;
    result.runtime.paths = flags.nvme_paths;
  }
  result.runtime.daemon = flags.daemon;
  result.runtime.job = flags.job;
  result.runtime.unsafe_media = flags.unsafe_media;
  result.runtime.engine = flags.engine;
  result.runtime.pace = flags.pace;
  result.runtime.machine_profile = flags.machine_profile;
  result.runtime.threads = static_cast<int>(flags.threads);
  return result;
}

std::string PlanText(const OffloadPlan& plan) {
  const auto bytes = [](int64_t count) {
    return BytesText(static_cast<double>(count));
  };
  std::vector<std::string> places;
  if (!plan.paths.empty()) {
    places.push_back(absl::StrCat(plan.paths.size(), " paths"));
  }
  for (const terrace::TierSpec& tier : plan.runtime.tiers) {
    if (tier.kind == terrace::TierKind::kFar ||
        tier.kind == terrace::TierKind::kPmem) {
      places.push_back(terrace::TierText(tier));
    }
  }
  if (!plan.runtime.daemon.empty()) {
    places.push_back(absl::StrCat("what ", plan.runtime.daemon, " has"));
  }
  // Of what joins, the whole is known when all is there.
  const std::string in_memory =
      plan.joined
          ? ", beside parameters and gradients"
          : absl::StrCat(", of it in memory at most ", bytes(plan.budget_bytes),
                         plan.budget_raised ? " (the least that works)" : "");
  std::string text = absl::StrCat(
      "optimizer state: ", bytes(plan.plan.state_bytes), in_memory, ", in ",
      plan.plan.chunks, " chunks of at most ", bytes(plan.plan.chunk_bytes),
      plan.paths.empty() ? "\nbelow memory: " : "\non disk: ",
      bytes(plan.plan.disk_bytes),
      plan.joined ? " for parameters, gradients, the state and headers on "
                  : " for the state and its headers on ",
      absl::StrJoin(places, ", or on "));
  if (plan.verify_bytes > 0) {
    absl::StrAppend(&text, ", ", bytes(plan.verify_bytes),
                    " for --verify's copy of the parameters");
  }
  absl::StrAppend(&text, "\n");
  if (plan.runtime.unsafe_media) {
    absl::StrAppend(&text,
                    "unsafe media: an ordinary file may play persistent "
                    "memory; what it holds does not outlive a power failure\n");
  }
  return text;
}

}  // namespace train_gpt
