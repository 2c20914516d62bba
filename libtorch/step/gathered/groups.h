// Reads and checks LibTorch's parameter groups, whose positions are for
// messages. Pure functions.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/tensor_check.h"
#include "terrace/torch/group_options.h"

namespace terrace {

// Reads a group's options as ReadGroupOptions does; its errors name the group.
absl::StatusOr<AdamOptions> ReadGroup(
    AdamMode mode, const ::torch::optim::OptimizerParamGroup& group,
    size_t position);

// Returns the groups' options by the parameters' places; a parameter that is in
// no group has the default ones. Errors are those of ReadGroup.
absl::StatusOr<std::vector<AdamOptions>> OptionsByPlace(
    AdamMode mode, bool bias_correction,
    const std::vector<::torch::optim::OptimizerParamGroup>& groups,
    const KnownParameters& known);

// Checks groups before anything is made of them, with the errors of ReadGroup
// and DescribeParameter.
absl::Status CheckGroups(
    AdamMode mode,
    const std::vector<::torch::optim::OptimizerParamGroup>& groups,
    OffloadedTensors offloaded);

}  // namespace terrace
