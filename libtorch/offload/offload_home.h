// One offloaded model has a Runtime over the places that were asked for, and a
// hook over the Runtime with a window.
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
  // The Runtime has no places below where all of the model is in memory.
  PlaceOptions asked;
  OffloadPlan plan;
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Hook> hook;  // over the runtime
};

// Makes a home with room for these tensors, none of which is in it yet. From
// the first home on that has a place below, malloc returns freed blocks
// (freed_blocks.h). All of the hook's options are used but the window. Errors
// are those of PlanOffload, Runtime::Create and Hook::Create.
absl::StatusOr<OffloadHome> OpenOffloadHome(
    const std::vector<at::Tensor>& tensors,
    const std::vector<std::string>& names,
    const std::vector<std::vector<int64_t>>& modules, const PlaceOptions& asked,
    HookOptions hook = {});

}  // namespace terrace
