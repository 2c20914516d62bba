// What some accelerators have beside LibTorch's device-independent interfaces:
// memory of the process that the device copies from and to without a detour.
// CUDA's module says so for CUDA, tests for theirs; a device of which nobody
// has said so copies all the same, if slower.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace terrace {

// It is thread-safe.
class DeviceExtras {
 public:
  virtual ~DeviceExtras() = default;
  // The range is the device's to copy from and to until UnregisterHost, which
  // is called with its begin.
  virtual absl::Status RegisterHost(absl::Span<std::byte> range) = 0;
  virtual void UnregisterHost(std::byte* begin) = 0;
};

// Says so for all devices of the type, from here on; null: not any more.
void SetDeviceExtras(c10::DeviceType type,
                     std::shared_ptr<DeviceExtras> extras);
// Returns null where nobody has said so.
std::shared_ptr<DeviceExtras> ExtrasOf(c10::DeviceType type);

}  // namespace terrace
