#include "libtorch/offload/tier_runtime.h"

#include <algorithm>

#include "libtorch/torch_device.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const PlaceOptions& asked,
                                                   int64_t budget_bytes,
                                                   int64_t growth_bytes) {
  Options runtime;
  runtime.threads = asked.threads;
  runtime.host_growth_bytes = growth_bytes;
  if (!asked.daemon.empty()) {
    runtime.daemon = asked.daemon;
    runtime.job = asked.job;
    // What is smaller than the least of any Runtime is had there all the same,
    // as it is where no Runtime is needed.
    runtime.host_budget_bytes = std::max(budget_bytes, 3 * ResidentBytes(1));
    return Runtime::Create(runtime);
  }
  runtime.engine = asked.engine;
  runtime.tiers = {{.kind = TierKind::kDram,
                    .place = asked.memory_place,
                    .budget_bytes = asked.device.empty()
                                        ? budget_bytes
                                        : asked.below_device_bytes}};
  if (!asked.device.empty()) {
    runtime.tiers.push_back(
        {.kind = TierKind::kHbm,
         .place = asked.device,
         .budget_bytes = budget_bytes,
         .device = MakeTorchDevice(c10::Device(asked.device))});
  }
  runtime.tiers.insert(runtime.tiers.end(), asked.mapped_tiers.begin(),
                       asked.mapped_tiers.end());
  runtime.unsafe_media = asked.unsafe_media;
  for (size_t i = 0; i < asked.paths.size(); ++i) {
    const bool is_limited = i < asked.path_budgets.size();
    runtime.tiers.push_back(
        {.kind = TierKind::kDisk,
         .place = asked.paths[i],
         .budget_bytes = is_limited ? asked.path_budgets[i] : 0});
  }
  runtime.machine_profile = asked.machine_profile;
  return Runtime::Create(runtime);
}

}  // namespace terrace
