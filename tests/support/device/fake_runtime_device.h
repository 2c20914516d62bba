// Fake devices for a TestRuntime: in virtual time, and of threads.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/device/runtime_device.h"
#include "tests/support/device/threaded_device.h"
#include "tests/support/device/virtual_device.h"

namespace terrace {

// Over a fake, whose bytes the test has at hand.
template <typename Fake>
class FakeRuntimeDevice : public RuntimeDevice {
 public:
  void Write(uintptr_t address, absl::Span<const std::byte> bytes) override {
    std::memcpy(At(address, bytes.size()), bytes.data(), bytes.size());
  }
  void Read(uintptr_t address, absl::Span<std::byte> bytes) override {
    std::memcpy(bytes.data(), At(address, bytes.size()), bytes.size());
  }
  bool Break(const std::string& code) override {
    fake_->Break(code);
    return true;
  }
  std::vector<std::string> violations() override {
    return fake_->bytes().violations();
  }
  // Once the runtime has it.
  Fake& fake() { return *fake_; }

 protected:
  std::shared_ptr<Device> Of(std::shared_ptr<Fake> fake) {
    fake_ = std::move(fake);
    fake_->bytes().RequirePins();
    return fake_;
  }

 private:
  std::byte* At(uintptr_t address, size_t size) {
    return fake_->bytes().At(reinterpret_cast<const void*>(address),
                             static_cast<int64_t>(size));
  }

  std::shared_ptr<Fake> fake_;
};

class VirtualRuntimeDevice final : public FakeRuntimeDevice<VirtualDevice> {
 protected:
  std::shared_ptr<Device> Open(VirtualClock& clock) override {
    return Of(std::make_shared<VirtualDevice>(clock, VirtualDeviceOptions()));
  }
};

class ThreadedRuntimeDevice final : public FakeRuntimeDevice<ThreadedDevice> {
 protected:
  std::shared_ptr<Device> Open(VirtualClock&) override {
    return Of(std::make_shared<ThreadedDevice>(ThreadedDeviceOptions()));
  }
};

}  // namespace terrace
