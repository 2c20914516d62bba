// A device's memory as a tier (HBM): a fixed budget, taken at the start. The
// CPU addresses none of it, nothing is sealed and nothing grows.
//
// Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tiers/byte_tier.h"
#include "tiers/device/device_space.h"
#include "tiers/extent_allocator.h"

namespace terrace {

class DeviceTier final : public Tier {
 public:
  // `spec` as it was asked for: its budget is the space's size, or that and
  // less than a block.
  DeviceTier(TierId id, TierSpec spec, std::shared_ptr<DeviceSpace> space);

  TierId id() const override { return id_; }
  const std::string& name() const override { return name_; }
  TierKind kind() const override { return TierKind::kHbm; }
  TierSpec spec() const override { return spec_; }
  TierUsage usage() const override;

  // Unavailable, with the device's code: the device failed for good, and what
  // is only there is lost. ResourceExhausted: there is no such range.
  absl::StatusOr<std::optional<Reservation>> Allocate(int64_t size_bytes,
                                                      bool must) override;
  void Free(Extent extent) override;
  Extent WithFreeBeside(const Extent& range) const override {
    return ranges_.WithFreeBeside(range);
  }
  std::byte* Address(const Extent&) override { return nullptr; }
  // Where a pin's bytes are, for what computes on the device.
  void* DeviceAddress(const Extent& extent) const {
    return space_->At(extent.offset);
  }
  // As of Device.
  absl::Status Health() const override { return space_->Health(); }

  // The device's memory stays too.
  void Abandon() override;

 private:
  const TierId id_;
  const TierSpec spec_;
  const std::string name_;
  const std::shared_ptr<DeviceSpace> space_;
  ExtentAllocator ranges_;
  int64_t peak_bytes_ = 0;
  bool abandoned_ = false;
};

}  // namespace terrace
