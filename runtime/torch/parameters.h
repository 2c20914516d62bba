// LibTorch's tensors as the plain words of terrace/optimizer.h. Pure
// functions; the tensors must outlive what points into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "terrace/optimizer.h"

namespace terrace {

// InvalidArgument, with the reason, for what the optimizer cannot step: no
// leaf, another device, sparse, complex or integer, not contiguous.
// `position` is the parameter's in its group, for the message.
absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position);

// The addresses of a parameter and of its gradient (null if it has none).
// InvalidArgument if either is no longer, or not, what `spec` says.
absl::StatusOr<ParameterData> LocateParameter(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position);

}  // namespace terrace
