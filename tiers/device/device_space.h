// A tier's share of a device's memory: one reservation, taken at once and kept
// to the end, and streams to and from it. Its ranges are handed out by a
// DeviceTier, its bytes moved by a DeviceTransport, which both share it.
//
// Thread-safe, but for the streams.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device.h"

namespace terrace {

class DeviceSpace {
 public:
  // Of whole blocks of 4 KiB, rounded down. InvalidArgument: there is none;
  // ResourceExhausted: the device has not that much free; else what the device
  // says.
  static absl::StatusOr<std::shared_ptr<DeviceSpace>> Create(
      std::shared_ptr<Device> device, int64_t size_bytes);
  DeviceSpace(const DeviceSpace&) = delete;
  DeviceSpace& operator=(const DeviceSpace&) = delete;

  std::string name() const { return device_->name(); }
  absl::Status Health() const { return device_->Health(); }
  int64_t size_bytes() const { return size_bytes_; }
  // An address of the device; it must not be followed.
  void* At(int64_t offset) const {
    return static_cast<std::byte*>(memory_.get()) + offset;
  }
  // What copies from here, and what copies to here: two, so that neither
  // direction waits for the other.
  Device::Stream& to_host() { return *to_host_; }
  Device::Stream& to_device() { return *to_device_; }

 private:
  using OwnedStream = std::unique_ptr<Device::Stream>;

  DeviceSpace(std::shared_ptr<Device> device, DeviceMemory memory,
              int64_t size_bytes, OwnedStream to_host, OwnedStream to_device)
      : device_(std::move(device)),
        memory_(std::move(memory)),
        size_bytes_(size_bytes),
        to_host_(std::move(to_host)),
        to_device_(std::move(to_device)) {}

  const std::shared_ptr<Device> device_;  // goes last
  const DeviceMemory memory_;
  const int64_t size_bytes_;
  const OwnedStream to_host_;
  const OwnedStream to_device_;
};

}  // namespace terrace
