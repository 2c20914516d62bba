// A device's streams by LibTorch's device-independent interfaces: any
// accelerator's (streamed_device.h). What LibTorch throws comes back as a
// Status.
//
// Whether a stream is capturing a graph is not among those interfaces: it is
// CUDA's to say.
//
// Thread-safe.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class TorchStreams final : public StreamedDevice {
 public:
  // The device has its index.
  explicit TorchStreams(c10::Device device) : device_(device) {}

  c10::Stream StreamOf(StreamId stream) const {
    return c10::Stream(c10::Stream::UNSAFE, device_, stream);
  }

  StreamId CurrentStream() override;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(StreamId stream) override;
  absl::Status Await(StreamId stream, DeviceEvent& event) override;
  absl::Status Wait(DeviceEvent& event) override;
  absl::Status WaitForAll() override;
  bool IsCapturing(StreamId) override { return false; }

 private:
  const c10::Device device_;
};

// A block of the device's caching allocator, which `data` has: it outlives
// this.
class TorchBlock final : public StreamedBlock {
 public:
  explicit TorchBlock(const c10::DataPtr& data) : data_(data) {}
  absl::Status RecordUse(StreamId stream) override;

 private:
  const c10::DataPtr& data_;
};

}  // namespace terrace
