// Where one offloaded model lives: its Runtime, and its hook over that.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/torch/python/place/offload_plan.h"
#include "runtime/torch/python/place/tier_runtime.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace terrace {

class OffloadPlace {
 public:
  static absl::StatusOr<std::shared_ptr<OffloadPlace>> Open(
      const std::vector<at::Tensor>& tensors,
      const std::vector<std::string>& names,
      const std::vector<std::vector<int64_t>>& modules,
      const BindingOptions& asked);

  Runtime& runtime() { return *runtime_; }
  Hook& hook() { return *hook_; }
  const OffloadPlan& plan() const { return plan_; }

 private:
  OffloadPlace() = default;

  OffloadPlan plan_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Hook> hook_;  // over it
};

}  // namespace terrace
