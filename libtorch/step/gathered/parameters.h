// Describes LibTorch's tensors in the plain words of terrace/optimizer.h. Pure
// functions; the tensors must outlive the addresses that point into them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/tensor_check.h"
#include "terrace/optimizer.h"

namespace terrace {

// Returns the spec, without a name, of a tensor that is to be stepped. Returns
// InvalidArgument, with the reason, for one that is neither in CPU nor in CUDA
// memory, is sparse, complex or integer, or is offloaded where `offloaded`
// refuses that. Messages, here and below, call the parameter as it is `called`:
// "3", or "'head.weight'".
absl::StatusOr<ParameterSpec> DescribeTensor(const at::Tensor& parameter,
                                             const std::string& called,
                                             OffloadedTensors offloaded);
// Refuses also a parameter that is no leaf, or has elements that share memory.
absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position,
                                                OffloadedTensors offloaded);

// Returns InvalidArgument when the parameter is no longer what `spec` says, or
// has another shape than this, if it is not null.
absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec,
                            const std::string& called,
                            OffloadedTensors offloaded,
                            const c10::DimVector* shape);

// Returns the gradient of a parameter that has one, without its graph, or a
// copy of it where it is not contiguous. Returns InvalidArgument for a gradient
// that is not dense, or is of another device, shape or dtype than it may be.
// What is offloaded is not brought.
absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              const std::string& called,
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
