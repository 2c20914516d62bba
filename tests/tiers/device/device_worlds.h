// Devices that the same tests run on: in virtual time, of threads, and a GPU
// where there is one.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/device.h"
#include "gtest/gtest.h"
#include "tests/support/device/threaded_device.h"
#include "tests/support/device/virtual_device.h"
#include "tests/support/manual_clock.h"

namespace terrace {

class DeviceWorld {
 public:
  virtual ~DeviceWorld() = default;

  // Null: there is none here, as why() says.
  virtual std::shared_ptr<Device> device() = 0;
  virtual std::string why() const { return ""; }
  virtual Clock& clock() = 0;
  // Lets the device go on until then; false: it does not come to that.
  virtual bool Await(absl::FunctionRef<bool()> done) = 0;
  // What its customers did wrong, as far as it can tell.
  virtual std::vector<std::string> violations() { return {}; }
};

class VirtualWorld final : public DeviceWorld {
 public:
  explicit VirtualWorld(VirtualDeviceOptions options = {})
      : device_(std::make_shared<VirtualDevice>(clock_, std::move(options))) {}

  std::shared_ptr<Device> device() override { return device_; }
  VirtualDevice& fake() { return *device_; }
  VirtualClock& clock() override { return clock_; }
  bool Await(absl::FunctionRef<bool()> done) override {
    return clock_.RunUntil(done);
  }
  std::vector<std::string> violations() override {
    return device_->bytes().violations();
  }

 private:
  VirtualClock clock_;
  std::shared_ptr<VirtualDevice> device_;
};

// In real time, looking every now and then, for a minute at most.
inline bool AwaitInRealTime(absl::FunctionRef<bool()> done) {
  const absl::Time end = SystemClock().Now() + absl::Minutes(1);
  while (!done()) {
    if (SystemClock().Now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

class ThreadedWorld final : public DeviceWorld {
 public:
  explicit ThreadedWorld(ThreadedDeviceOptions options = {})
      : device_(std::make_shared<ThreadedDevice>(std::move(options))) {}

  std::shared_ptr<Device> device() override { return device_; }
  ThreadedDevice& fake() { return *device_; }
  Clock& clock() override { return SystemClock(); }
  bool Await(absl::FunctionRef<bool()> done) override {
    return AwaitInRealTime(done);
  }
  std::vector<std::string> violations() override {
    return device_->bytes().violations();
  }

 private:
  std::shared_ptr<ThreadedDevice> device_;
};

// Eight bytes at a time; what is left at the end stays.
inline void FillRandom(absl::Span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const uint64_t value = seed ^ (seed >> 32);
    std::memcpy(bytes.data() + i, &value, 8);
  }
}

inline bool SameBytes(absl::Span<const std::byte> one,
                      absl::Span<const std::byte> other) {
  return one.size() == other.size() &&
         std::memcmp(one.data(), other.data(), one.size()) == 0;
}

// What is at an address of a device.
inline std::vector<std::byte> BytesOf(Device& device, const void* address,
                                      int64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  auto stream = device.MakeStream();
  EXPECT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE((*stream)->CopyToHost(bytes.data(), address, size_bytes).ok());
  EXPECT_TRUE((*stream)->Wait().ok());
  return bytes;
}

}  // namespace terrace
