// A device's streams by LibTorch's device-independent interfaces: any
// accelerator's (streamed_device.h). What LibTorch throws comes back as a
// Status, which names the device.
//
// Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class TorchStreams final : public StreamedDevice {
 public:
  // The device has its index.
  explicit TorchStreams(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  c10::Stream StreamOf(StreamId stream) const {
    return c10::Stream(c10::Stream::UNSAFE, device_, stream);
  }

  StreamId CurrentStream() override;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId stream) override;
  absl::StatusOr<bool> IsOver(DeviceEvent& event) override;
  absl::Status Wait(DeviceEvent& event) override;
  absl::Status WaitForAll() override;
  absl::Status Order(DeviceEvent& event, StreamId stream) override;

 private:
  const c10::Device device_;
};

}  // namespace terrace
