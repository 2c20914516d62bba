#include "libtorch/offload/offload_home.h"

#include "base/status_macros.h"
#include "libtorch/offload/freed_blocks.h"
#include "libtorch/offload/tier_runtime.h"

namespace terrace {

absl::StatusOr<OffloadHome> OpenOffloadHome(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules, const PlaceOptions& asked,
    HookOptions hook) {
  OffloadHome home;
  home.asked = asked;
  TERRACE_ASSIGN_OR_RETURN(home.plan,
                           PlanOffload(tensors, names, modules, asked));
  const OffloadPlan& plan = home.plan;
  PlaceOptions used = asked;
  used.below_device_bytes = plan.below_device_bytes;
  if (plan.all_in_memory) {
    used.paths.clear();
    used.mapped_tiers.clear();
    used.machine_profile.clear();
  } else {
    ReturnFreedBlocks();
  }
  TERRACE_ASSIGN_OR_RETURN(
      home.runtime, OpenTiers(used, plan.budget_bytes, plan.growth_bytes));
  hook.window_bytes = plan.window_bytes;
  if (!asked.device.empty()) hook.device = c10::Device(asked.device);
  TERRACE_ASSIGN_OR_RETURN(home.hook, Hook::Create(*home.runtime, hook));
  if (plan.activation_bytes > 0) home.hook->BeginSaving(plan.activation_bytes);
  return home;
}

}  // namespace terrace
