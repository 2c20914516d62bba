// Transfers to and from a device above memory and one disk.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/test_core.h"
#include "tiers/extent_header.h"

namespace terrace {

class DeviceTransferTest : public testing::Test {
 protected:
  static constexpr int64_t kCopyBytes = 2 * kPage;
  static constexpr TierId kDisk = kDisk0;

  // `slots`: of the staging, in each direction.
  explicit DeviceTransferTest(int slots = 1)
      : lease_(core_.others.staging.Open(
            core_.residency.FindRange(StagingBytes(kPage, slots)), kCopyBytes,
            slots)) {}

  Tensor& AddResting(const std::string& name) {
    Tensor& tensor = core_.Add(name);
    core_.Rest(tensor);
    return tensor;
  }
  // Written on the device, and nowhere else.
  Tensor& AddDirty(const std::string& name) {
    Tensor& tensor = core_.Add(name);
    tensor.BeginOverwrite(core_.others.residencies.front()->FindRoom(tensor));
    tensor.Hold(kHbmTier, Access::kOverwrite);
    std::fill(OnDevice(tensor).begin(), OnDevice(tensor).end(),
              static_cast<std::byte>(1 + tensor.id.value));
    tensor.Publish(kHbmTier);
    tensor.Unhold(kHbmTier, Access::kOverwrite);
    return tensor;
  }
  void FetchToDevice(Tensor& tensor, IoClass io_class = IoClass::kDemand) {
    core_.transfers.StartFill(
        tensor, core_.others.residencies.front()->FindRoom(tensor), io_class);
  }
  void DrainToDisk(Tensor& tensor) {
    Reservation slot =
        core_.others.staging.Take(StagingRoom::Way::kDown, kCopyBytes);
    ASSERT_FALSE(slot.empty());
    core_.transfers.StartDrain(tensor, kDisk, {}, std::move(slot));
  }
  absl::Span<std::byte> OnDevice(const Tensor& tensor) {
    std::vector<std::byte>& bytes = core_.machine.hbm->memory->bytes.bytes();
    const int64_t offset = tensor.at(kHbmTier)->place.extent().offset;
    return absl::MakeSpan(bytes).subspan(
        static_cast<size_t>(offset + kTensorHeaderBytes),
        static_cast<size_t>(tensor.spec.size_bytes));
  }
  bool HasItsBytes(const Tensor& tensor, absl::Span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [&](std::byte each) {
      return each == static_cast<std::byte>(1 + tensor.id.value);
    });
  }
  bool HasSlot(StagingRoom::Way way) {
    return !core_.others.staging.Take(way, kCopyBytes).empty();
  }
  Arrival One(std::vector<Arrival> arrivals) {
    EXPECT_EQ(arrivals.size(), 1u);
    TERRACE_CHECK(arrivals.size() == 1);
    return std::move(arrivals[0]);
  }
  FaultMedium& device() { return core_.machine.hbm->faults(); }
  HeldMoves& held() { return *core_.machine.hbm->held; }
  FaultPlan& disk() { return *core_.machine.faults; }

  TestCore core_{{.hbm_bytes = 32 * kPage, .paths = 1}};
  StagingRoom::Lease lease_;
};

}  // namespace terrace
