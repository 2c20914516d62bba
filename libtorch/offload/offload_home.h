// What one offloaded model has: a Runtime over the places that were asked for,
// and a hook over that with its window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "libtorch/offload/offload_plan.h"
#include "libtorch/offload/place_options.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace terrace {

struct OffloadHome {
  // The Runtime has no places below where all is in memory.
  PlaceOptions asked;
  OffloadPlan plan;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Hook> hook;  // over it
};

// Room for tensors as these, of which it has none yet. From the first one on
// that has a place below, malloc returns freed blocks (freed_blocks.h). Of the
// hook's options all but the window are used. Errors: as PlanOffload,
// Runtime::Create and Hook::Create.
absl::StatusOr<OffloadHome> OpenOffloadHome(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules, const PlaceOptions& asked,
    HookOptions hook = {});

}  // namespace terrace
