// torch's parameter groups as Python hands them over for a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/python/binding_options.h"
#include "terrace/optimizer.h"

namespace terrace {

// The group of each parameter, -1 of one that is in none. InvalidArgument: not
// as many int64 in CPU memory.
absl::StatusOr<absl::Span<const int64_t>> GroupsIn(const at::Tensor& group_of,
                                                   size_t parameters);

// What each parameter is stepped with: the numbers of its group, of which there
// are seven a group (learning rate, both betas, epsilon, weight decay; 1 or 0:
// whether the decay is decoupled, and whether the objective is maximized).
// InvalidArgument: a group without numbers.
absl::StatusOr<std::vector<AdamOptions>> AdamOfEach(
    absl::Span<const int64_t> group_of, const std::vector<double>& numbers,
    const BindingOptions& options);

}  // namespace terrace
