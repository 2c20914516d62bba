// A device of threads, in real time: each stream has one, which copies what it
// is told at a rate. So the thread sanitiser sees bytes that are used too early
// or too late. OnDone calls come from those threads.
//
// Thread-safe; a Stream is one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/device.h"
#include "tests/support/device/device_bytes.h"
#include "tests/support/device/device_script.h"

namespace terrace {

struct ThreadedDeviceOptions {
  std::string name = "fake:0";
  int64_t capacity_bytes = 64 << 20;
  double rate = 0;  // bytes a second of a stream; 0: as fast as they go
};

class ThreadedDevice final : public Device {
 public:
  explicit ThreadedDevice(ThreadedDeviceOptions options);

  DeviceScript& script() { return *script_; }
  DeviceBytes& bytes() { return *bytes_; }
  // What never ends, ends from here on.
  void Release() { script_->Release(); }
  // The device fails for good, with `code`: what is under way ends with it.
  void Break(const std::string& code) { script_->Break(options_.name, code); }

  std::string name() const override { return options_.name; }
  absl::Status Health() const override { return script_->health(); }
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes) override;
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override;
  absl::Status Synchronize() override;

 private:
  class ThreadedStream;

  absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece) override;

  const ThreadedDeviceOptions options_;
  const std::shared_ptr<DeviceScript> script_;
  const std::shared_ptr<DeviceBytes> bytes_;
};

}  // namespace terrace
