// A device in virtual time: a copy takes what its bytes take at a rate of its
// direction, and a time of its own. Copies of a stream run one after another,
// each direction serves one stream at a time, both directions at once. The
// bytes move when a copy ends; until then its target holds 0xFF, so that use
// before that gives wrong bytes, and a source that changes too early, too.
//
// One thread, that of the clock, which outlives the device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/device.h"
#include "tests/support/device/device_bytes.h"
#include "tests/support/device/device_script.h"
#include "tests/support/manual_clock.h"

namespace terrace {

struct VirtualDeviceOptions {
  std::string name = "fake:0";
  int64_t capacity_bytes = 64 << 20;
  // Bytes a second; 0: they take no time.
  double to_device_rate = 50e9;
  double to_host_rate = 50e9;
  absl::Duration copy_time = absl::Nanoseconds(4500);  // of each, beside
  // Of the rate, for a copy that begins while the other direction moves.
  double duplex_factor = 1;
};

class VirtualDevice final : public Device {
 public:
  VirtualDevice(VirtualClock& clock, VirtualDeviceOptions options);
  ~VirtualDevice() override;

  DeviceScript& script() { return *script_; }
  DeviceBytes& bytes() { return *bytes_; }
  // What never ends, ends from here on.
  void Release();
  // The device fails for good, with `code`: what is under way ends with it.
  void Break(const std::string& code);

  std::string name() const override { return options_.name; }
  absl::Status Health() const override { return script_->health(); }
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes) override;
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override;
  absl::Status Synchronize() override;

 private:
  class VirtualStream;
  class Engines;

  absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece) override;

  VirtualClock& clock_;
  const VirtualDeviceOptions options_;
  const std::shared_ptr<DeviceScript> script_;
  const std::shared_ptr<DeviceBytes> bytes_;
  const std::shared_ptr<Engines> engines_;  // shared with the clock's events
};

}  // namespace terrace
