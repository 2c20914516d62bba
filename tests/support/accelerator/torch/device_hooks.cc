// What LibTorch's CPU code asks an accelerator.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/accelerator_allocator.h"
#include "tests/support/accelerator/torch/accelerator_generator.h"
#include "tests/support/accelerator/torch/storages.h"

namespace terrace {
namespace {

struct DeviceHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return Accelerator::kDevices;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Guard().setDevice(AcceleratorDevice(device));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return CurrentAcceleratorDevice();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice(AcceleratorDevice(device)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? CurrentAcceleratorDevice() : exchangeDevice(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    for (c10::DeviceIndex device = 0; device < Accelerator::kDevices;
         ++device) {
      if (&TheAccelerator().memory(device) == TheAccelerator().MemoryAt(data)) {
        return AcceleratorDevice(device);
      }
    }
    TORCH_CHECK(false, "testdev: ", data, " is no address of a device");
  }
  bool isPinnedPtr(const void* data) const override {
    return TheAccelerator().pinned().IsPinned(
        reinterpret_cast<uintptr_t>(data));
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &AcceleratorPinnedAllocator();
  }
  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex device) const override {
    return AcceleratorGenerator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return NewAcceleratorGenerator(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage,
                              size_t bytes) const override {
    ResizeDeviceStorage(*storage.unsafeGetStorageImpl(), bytes);
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& Guard() {
    return *c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
  }
};

const bool is_registered = [] {
  c10::register_privateuse1_backend("testdev");
  at::RegisterPrivateUse1HooksInterface(new DeviceHooks);
  return true;
}();

}  // namespace
}  // namespace terrace
