#include "runtime/torch/python/place/tier_runtime.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace terrace {

absl::StatusOr<EngineKind> ParseEngine(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "io_uring") return EngineKind::kUring;
  if (name == "threads") return EngineKind::kThreads;
  return absl::InvalidArgumentError(absl::StrCat(
      "io_engine is 'auto', 'io_uring' or 'threads', not '", name, "'"));
}

absl::StatusOr<std::vector<TierSpec>> MappedTiers(const BindingOptions& asked) {
  std::vector<TierSpec> tiers;
  for (const std::string& text : asked.mapped_tiers) {
    TERRACE_ASSIGN_OR_RETURN(TierSpec tier, ParseTier(text));
    tiers.push_back(std::move(tier));
  }
  return tiers;
}

absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const BindingOptions& asked,
                                                   int64_t budget_bytes,
                                                   int64_t growth_bytes) {
  Options runtime;
  TERRACE_ASSIGN_OR_RETURN(runtime.engine, ParseEngine(asked.engine));
  runtime.threads = asked.threads;
  runtime.tiers = {{.kind = TierKind::kDram, .budget_bytes = budget_bytes}};
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierSpec> mapped,
                           MappedTiers(asked));
  runtime.tiers.insert(runtime.tiers.end(), mapped.begin(), mapped.end());
  runtime.unsafe_media = asked.unsafe_media;
  for (size_t i = 0; i < asked.paths.size(); ++i) {
    const bool is_limited = i < asked.path_budgets.size();
    runtime.tiers.push_back(
        {.kind = TierKind::kDisk,
         .place = asked.paths[i],
         .budget_bytes = is_limited ? asked.path_budgets[i] : 0});
  }
  runtime.machine_profile = asked.machine_profile;
  runtime.host_growth_bytes = growth_bytes;
  return Runtime::Create(runtime);
}

}  // namespace terrace
