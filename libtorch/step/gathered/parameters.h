// LibTorch's tensors as the plain words of terrace/optimizer.h. Pure
// functions; the tensors must outlive what points into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/tensor_check.h"
#include "terrace/optimizer.h"

namespace terrace {

// InvalidArgument, with the reason, for what the optimizer cannot step: no
// leaf, neither in CPU nor in CUDA memory, sparse, complex or integer, elements
// that share memory; or one that is offloaded, unless that is taken. `position`
// is the parameter's among all, for the message.
absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position,
                                                OffloadedTensors offloaded);

// InvalidArgument if the parameter is no longer what `spec` says.
absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec, size_t position,
                            OffloadedTensors offloaded);

// The parameter's gradient, which it has; a copy if it is not contiguous.
// InvalidArgument: not dense, of another device, shape or dtype than it may be.
absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position,
                                              OffloadedTensors offloaded);

// Of a contiguous gradient in memory; without elements some address.
const void* GradientAddress(const at::Tensor& gradient);

// The addresses of a contiguous parameter and gradient on `device`; null: in
// CPU memory. Where one of both is offloaded those at `offloaded`, which is
// null where none is. A gradient that is undefined has none.
ParameterData Locate(const at::Tensor& parameter, const at::Tensor& gradient,
                     Device* device, OffloadedDevice* offloaded);

}  // namespace terrace
