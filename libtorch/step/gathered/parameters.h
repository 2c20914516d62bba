// Describes LibTorch's tensors in the plain words of terrace/optimizer.h. Pure
// functions; the tensors must outlive the addresses that point into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/tensor_check.h"
#include "terrace/optimizer.h"

namespace terrace {

// Returns InvalidArgument, with the reason, for a parameter that the optimizer
// cannot step: it is no leaf, is neither in CPU nor in CUDA memory, is sparse,
// complex or integer, has elements that share memory, or is offloaded where
// `offloaded` refuses that. `position` is the parameter's among all, for the
// message.
absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position,
                                                OffloadedTensors offloaded);

// Returns InvalidArgument when the parameter is no longer what `spec` says.
absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec, size_t position,
                            OffloadedTensors offloaded);

// Returns the gradient of a parameter that has one, or a copy of it where it is
// not contiguous. Returns InvalidArgument for a gradient that is not dense, or
// is of another device, shape or dtype than it may be.
absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position,
                                              OffloadedTensors offloaded);

// Returns the address of a contiguous gradient in memory, or some address that
// is not null for a gradient without elements.
const void* GradientAddress(const at::Tensor& gradient);

// Returns the addresses of a contiguous parameter and gradient on `device`,
// which is null for CPU memory. Where one of both is offloaded the addresses
// are those of `offloaded`, which is null where no tensor is. A gradient that
// is undefined has no address.
ParameterData Locate(const at::Tensor& parameter, const at::Tensor& gradient,
                     Device* device, OffloadedDevice* offloaded);

}  // namespace terrace
