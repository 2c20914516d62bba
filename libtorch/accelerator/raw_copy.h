// Copies of bytes by their addresses between a device's memory and the CPU's,
// or within a device's. They are no operations of the program: no observer, no
// graph of autograd's and no mode of the program's sees them. Errors name the
// device.
//
// The functions are thread-safe. A copy is given to the calling thread's stream
// of the device; one that is `is_waited_for` is over when the function returns.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

struct RawPlace {
  void* address;
  c10::Device device;
};

absl::Status CopyRaw(RawPlace target, RawPlace source, int64_t bytes,
                     bool is_waited_for);

// Memory of LibTorch's allocator for that device.
absl::StatusOr<c10::DataPtr> AllocateRaw(c10::Device device, int64_t bytes);

// Blocks until the device has done all that it was given, on all its streams.
absl::Status AwaitDevice(c10::Device device);

}  // namespace terrace
