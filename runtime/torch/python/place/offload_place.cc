#include "runtime/torch/python/place/offload_place.h"

#include "runtime/base/status_macros.h"

namespace terrace {

absl::StatusOr<std::shared_ptr<OffloadPlace>> OffloadPlace::Open(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules,
    const BindingOptions& asked) {
  std::shared_ptr<OffloadPlace> place(new OffloadPlace);
  TERRACE_ASSIGN_OR_RETURN(place->plan_,
                           PlanOffload(tensors, names, modules, asked));
  const OffloadPlan& plan = place->plan_;
  BindingOptions used = asked;
  if (plan.all_in_memory) {
    used.paths.clear();
    used.mapped_tiers.clear();
    used.machine_profile.clear();
  }
  TERRACE_ASSIGN_OR_RETURN(place->runtime_, OpenTiers(used, plan.budget_bytes));
  TERRACE_ASSIGN_OR_RETURN(
      place->hook_,
      Hook::Create(*place->runtime_, {.window_bytes = plan.window_bytes}));
  if (plan.activation_bytes > 0) {
    place->hook_->BeginSaving(plan.activation_bytes);
  }
  return place;
}

}  // namespace terrace
