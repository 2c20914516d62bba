// Copies between the devices and with the CPU, as CUDA's: within the order of
// the source's current stream; the CPU waits unless the copy is non_blocking
// and the CPU's memory is pinned, or a copy of it can be taken at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace terrace {

// LibTorch's copy_, where one of the two is on a device.
at::Tensor CopyTensor(const at::Tensor& source, const at::Tensor& target,
                      bool non_blocking);
// Of the calling thread's current device, within its current stream.
void CopyDeviceBytes(void* target, const void* source, size_t bytes);

}  // namespace terrace
