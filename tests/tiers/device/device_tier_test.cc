#include "tiers/device/device_tier.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_worlds.h"
#include "tiers/device/device_space.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kPage = 4096;

class DeviceTierTest : public testing::Test {
 protected:
  DeviceTierTest() {
    auto space = DeviceSpace::Create(world_.device(), 8 * kMiB);
    EXPECT_TRUE(space.ok()) << space.status();
    space_ = *std::move(space);
    tier_ = std::make_unique<DeviceTier>(
        TierId{TierKind::kHbm, 1}, TierSpec{TierKind::kHbm, "cuda:0", 8 * kMiB},
        space_);
  }

  Reservation Take(int64_t bytes) {
    auto taken = tier_->Allocate(bytes, /*must=*/true);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? **std::move(taken) : Reservation();
  }

  VirtualWorld world_;
  std::shared_ptr<DeviceSpace> space_;
  std::unique_ptr<DeviceTier> tier_;
};

TEST_F(DeviceTierTest, ItIsAFixedBudgetThatTheCpuDoesNotAddress) {
  EXPECT_EQ(tier_->kind(), TierKind::kHbm);
  EXPECT_EQ(tier_->id(), (TierId{TierKind::kHbm, 1}));
  EXPECT_EQ(tier_->name(), "fake:0");
  EXPECT_EQ(tier_->spec().place, "cuda:0");
  EXPECT_FALSE(tier_->seal_id().has_value());
  EXPECT_EQ(tier_->usage().capacity_bytes, 8 * kMiB);
  EXPECT_EQ(tier_->Address({0, kPage}), nullptr);
  EXPECT_EQ(tier_->NextEvent(), absl::InfiniteFuture());
  tier_->BeginRemove();
  EXPECT_TRUE(tier_->removed());
  EXPECT_EQ(world_.fake().bytes().used_bytes(), 8 * kMiB);
}

TEST_F(DeviceTierTest, RangesLieApartWithinTheDevicesBlock) {
  const Reservation first = Take(kMiB);
  const Reservation second = Take(kPage);
  EXPECT_TRUE(first.extent().end() <= second.extent().offset ||
              second.extent().end() <= first.extent().offset);
  auto* const base = static_cast<std::byte*>(space_->At(0));
  EXPECT_EQ(tier_->DeviceAddress(second.extent()),
            base + second.extent().offset);
}

TEST_F(DeviceTierTest, ItCountsWhatIsTakenAndGivenBack) {
  Reservation first = Take(3 * kMiB);
  {
    const Reservation second = Take(2 * kMiB);
    EXPECT_EQ(tier_->usage().used_bytes, 5 * kMiB);
  }
  EXPECT_EQ(tier_->usage().used_bytes, 3 * kMiB);
  EXPECT_EQ(tier_->usage().peak_bytes, 5 * kMiB);
  first.Reset();
  EXPECT_EQ(tier_->usage().used_bytes, 0);
}

TEST_F(DeviceTierTest, WithoutRoomItSaysHowMuchThereIs) {
  const Reservation held = Take(5 * kMiB);
  const auto refused = tier_->Allocate(4 * kMiB, /*must=*/true);
  EXPECT_EQ(refused.status(),
            absl::ResourceExhaustedError(
                "fake:0: no room for 4194304 bytes: 3145728 of 8388608 are "
                "free, 3145728 of them in one piece"));
}

TEST_F(DeviceTierTest, ADeviceThatFailedGivesNothingMore) {
  Reservation held = Take(kMiB);
  world_.fake().Break("cudaErrorIllegalAddress (700)");
  const absl::Status broken =
      absl::UnavailableError("fake:0: cudaErrorIllegalAddress (700)");
  EXPECT_EQ(tier_->Health(), broken);
  EXPECT_EQ(tier_->Allocate(kPage, /*must=*/false).status(), broken);
  held.Reset();  // its books go on
  EXPECT_EQ(tier_->usage().used_bytes, 0);
}

TEST_F(DeviceTierTest, ItsMemoryGoesWithTheLastThatHasIt) {
  space_.reset();
  EXPECT_EQ(world_.fake().bytes().used_bytes(), 8 * kMiB);
  tier_.reset();
  EXPECT_EQ(world_.fake().bytes().used_bytes(), 0);
}

TEST_F(DeviceTierTest, AbandonedItLeavesTheDevicesMemory) {
  Reservation held = Take(kMiB);
  tier_->Abandon();
  held.Reset();
  EXPECT_EQ(tier_->usage().used_bytes, kMiB);
  tier_.reset();
  space_.reset();
  EXPECT_EQ(world_.fake().bytes().used_bytes(), 8 * kMiB);
}

TEST(DeviceSpaceTest, ItsBudgetIsWholeBlocks) {
  VirtualWorld world;
  const auto space = DeviceSpace::Create(world.device(), 3 * kPage - 1);
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_EQ((*space)->size_bytes(), 2 * kPage);
  EXPECT_EQ(DeviceSpace::Create(world.device(), kPage - 1).status(),
            absl::InvalidArgumentError(
                "fake:0: a tier of 4095 bytes; it needs 4096 at least"));
}

TEST(DeviceSpaceTest, MoreThanTheDeviceHasIsRefusedWithWhatItHas) {
  VirtualWorld world({.capacity_bytes = 4 * kMiB});
  const auto held = DeviceSpace::Create(world.device(), 3 * kMiB);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(DeviceSpace::Create(world.device(), 2 * kMiB).status(),
            absl::ResourceExhaustedError(
                "a tier of 2097152 bytes: fake:0: out of memory: 2097152 bytes "
                "asked for, 1048576 of 4194304 are free"));
}

TEST(DeviceSpaceTest, EachCallFailsInTurnAndNothingIsLeft) {
  VirtualWorld world;
  DeviceScript& script = world.fake().script();
  const absl::Status error = absl::UnavailableError("as the script says");
  for (const DeviceCallKind kind :
       {DeviceCallKind::kAllocate, DeviceCallKind::kMakeStream}) {
    const int calls = kind == DeviceCallKind::kMakeStream ? 2 : 1;
    for (int call = 0; call < calls; ++call) {
      script.Fail(kind, call, {.at_once = error});
      const auto space = DeviceSpace::Create(world.device(), kMiB);
      EXPECT_TRUE(absl::IsUnavailable(space.status())) << space.status();
      EXPECT_EQ(world.fake().bytes().used_bytes(), 0);
    }
  }
  EXPECT_TRUE(DeviceSpace::Create(world.device(), kMiB).ok());
}

}  // namespace
}  // namespace terrace
