// Devices, streams and events, as LibTorch's device-independent code calls
// them.
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>

#include "tests/support/accelerator/torch/accelerator.h"

namespace terrace {
namespace {

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, Accelerator::kDevices> current_streams{};

StreamMark& MarkOf(void* event) { return *static_cast<StreamMark*>(event); }

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return AcceleratorDevice(current_device);
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone() && device.index() < deviceCount(),
                "testdev: there is no device ", device, ", only ",
                static_cast<int>(deviceCount()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return Accelerator::kDevices;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return {};
  }

  c10::Stream getStream(c10::Device device) const override {
    return CurrentAcceleratorStream(IndexOf(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT,
                       AcceleratorDevice(IndexOf(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return TheAccelerator().NextStream(IndexOf(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return TheAccelerator().NextStream(IndexOf(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    TheAccelerator().Of(stream);
    const c10::Stream before = getStream(stream.device());
    current_streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    Accelerator& accelerator = TheAccelerator();
    return accelerator.IsOver(
        accelerator.streams().Record(accelerator.Of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    TheAccelerator().WaitForStream(TheAccelerator().Of(stream));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    TheAccelerator().WaitForDevice(device < 0 ? current_device : device);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    Accelerator& accelerator = TheAccelerator();
    StreamMark mark = accelerator.streams().Record(accelerator.Of(stream));
    if (*event == nullptr) *event = new StreamMark;
    MarkOf(*event) = std::move(mark);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    TheAccelerator().streams().Await(TheAccelerator().Of(stream),
                                     MarkOf(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || TheAccelerator().IsOver(MarkOf(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) TheAccelerator().Wait(MarkOf(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<StreamMark*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const c10::Stream& stream) const override {
    Accelerator& accelerator = TheAccelerator();
    // Memory of others is theirs to keep, as with CUDA's.
    if (AcceleratorMemory* const memory = accelerator.MemoryAt(data.get())) {
      memory->RecordUse(reinterpret_cast<uintptr_t>(data.get()),
                        accelerator.Of(stream));
    }
  }

 private:
  static c10::DeviceIndex IndexOf(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(
    c10::DeviceType::PrivateUse1, new DeviceGuard);

}  // namespace

c10::DeviceIndex CurrentAcceleratorDevice() { return current_device; }

c10::Stream CurrentAcceleratorStream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, AcceleratorDevice(device),
                     current_streams.at(static_cast<size_t>(device)));
}

}  // namespace terrace
