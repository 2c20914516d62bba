// A device for a TestRuntime, by the parts that a GPU has: its tier, its
// transport and the pinned arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/device.h"
#include "gtest/gtest.h"
#include "policies/eviction.h"
#include "runtime/local_runtime.h"
#include "runtime/make_core_device.h"
#include "tests/support/manual_clock.h"

namespace terrace {

class RuntimeDevice {
 public:
  virtual ~RuntimeDevice() = default;

  // Gives the runtime of those parts the device, with so many bytes of it.
  void AddTo(VirtualClock& clock, int64_t size_bytes, EvictionKind eviction,
             LocalRuntimeParts* parts) {
    device_ = Open(clock);
    const TierSpec spec = {TierKind::kHbm, "cuda:0", size_bytes};
    absl::StatusOr<CoreDevice> core = MakeCoreDevice(
        device_, spec, *parts->clock, MakeEvictionPolicy(eviction));
    ASSERT_TRUE(core.ok()) << core.status();
    parts->devices.push_back(*std::move(core));
    auto pinned = device_->Pin(parts->arena, parts->arena->bytes());
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    parts->pinned = *std::move(pinned);
  }

  // What computes on the device does, between the runtime's moves.
  virtual void Write(uintptr_t address, absl::Span<const std::byte> bytes) = 0;
  virtual void Read(uintptr_t address, absl::Span<std::byte> bytes) = 0;
  // For good; false: it cannot be made to.
  virtual bool Break(const std::string&) { return false; }
  // What the runtime did wrong, as far as the device can tell.
  virtual std::vector<std::string> violations() { return {}; }

 protected:
  virtual std::shared_ptr<Device> Open(VirtualClock& clock) = 0;
  Device& device() { return *device_; }

 private:
  std::shared_ptr<Device> device_;
};

}  // namespace terrace
