// Memory that Terrace registers with the tests' accelerator, as CUDA's module
// does with CUDA: the device copies from and to it while the CPU goes on.
#pragma once

#include <memory>

#include "libtorch/accelerator/device_extras.h"
#include "tests/support/accelerator/torch/accelerator.h"

namespace terrace {

class TestDeviceExtras final : public DeviceExtras {
 public:
  absl::Status RegisterHost(absl::Span<std::byte> range) override {
    const auto begin = reinterpret_cast<uintptr_t>(range.data());
    TheAccelerator().pinned().Register({begin, begin + range.size()});
    return absl::OkStatus();
  }
  void UnregisterHost(std::byte* begin) override {
    TheAccelerator().pinned().Unregister(reinterpret_cast<uintptr_t>(begin));
  }
};

// From its beginning to its end, unless it is off.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(bool is_on = true) {
    if (!is_on) return;
    SetDeviceExtras(c10::DeviceType::PrivateUse1,
                    std::make_shared<TestDeviceExtras>());
  }
  ~RegisteredMemory() {
    SetDeviceExtras(c10::DeviceType::PrivateUse1, nullptr);
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
};

}  // namespace terrace
