// The accelerator's allocators (accelerator.h): of the current device, its
// current stream the block's home, and of pinned memory. Thread-safe.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace terrace {

c10::DeviceAllocator& AcceleratorAllocator();
c10::Allocator& AcceleratorPinnedAllocator();

}  // namespace terrace
