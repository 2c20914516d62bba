// What LibTorch's parameter groups say, with their position for messages. Pure
// functions.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/tensor_check.h"
#include "terrace/torch/group_options.h"

namespace terrace {

// As ReadGroupOptions.
absl::StatusOr<AdamOptions> ReadGroup(
    AdamMode mode, const ::torch::optim::OptimizerParamGroup& group,
    size_t position);

// What can be said of groups before anything is made of them: as ReadGroup and
// DescribeParameter.
absl::Status CheckGroups(
    AdamMode mode,
    const std::vector<::torch::optim::OptimizerParamGroup>& groups,
    OffloadedTensors offloaded);

}  // namespace terrace
