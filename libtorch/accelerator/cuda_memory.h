// A CUDA device's memory as LibTorch has it: its caching allocator, streams and
// events. In a library of its own (terrace_torch_cuda), compiled where
// LibTorch's CUDA and the runtime's headers are; nothing else of Terrace knows
// them, and the CPU's library links none of it.
//
//   auto memory = OpenCudaMemory(0, 8 << 30);
//   auto hook = DeviceHook::Create(*below, **memory, CudaRelief(), {});
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "libtorch/accelerator/device_storage.h"
#include "libtorch/accelerator/relief_port.h"

namespace terrace {

// Of all that LibTorch allocates there at most so many bytes; 0: as it is set.
// Unavailable, with CUDA's reason: no such device. InvalidArgument: more than
// the device has. Internal: LibTorch's CUDA library is not in the process, or
// cannot be readied.
absl::StatusOr<std::unique_ptr<TorchStreamedDevice>> OpenCudaMemory(
    c10::DeviceIndex device, int64_t limit_bytes);

// Where LibTorch's allocator asks for CUDA memory, of any device: the one port
// of the process, from when this library is loaded on.
ReliefPort& CudaRelief();

}  // namespace terrace
