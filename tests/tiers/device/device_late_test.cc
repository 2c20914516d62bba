// Copies whose events do not come: what is late, who has its bytes, and when
// they are given back.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_tier_fixture.h"

namespace terrace {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(8);

class DeviceLateTest : public DeviceTransportTest {
 protected:
  DeviceLateTest() { PollByItself(); }

  void BeginTimed(uint64_t tag, Edge edge, int64_t offset, int64_t size_bytes) {
    Move move = MoveOf(tag, edge, offset, size_bytes);
    move.timeout = kTimeout;
    transport_->Begin(move);
  }
  void Hang(DeviceCallKind kind, int64_t number) {
    script().Fail(kind, number, {.never = true});
  }
};

TEST_F(DeviceLateTest, AnEventThatNeverComesMakesItsMoveLate) {
  Hang(DeviceCallKind::kToDevice, 2);
  const absl::Time start = clock().Now();
  BeginTimed(0, kDown, 0, 8 * kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); },
                               start + absl::Minutes(1)));
  // From the last end that there was.
  EXPECT_GE(clock().Now() - start, kTimeout + 2 * kMiBTime);
  EXPECT_LE(clock().Now() - start, kTimeout + absl::Seconds(1));
  ASSERT_EQ(ends_[0].size(), 1u);
  EXPECT_TRUE(ends_[0][0].late);
  EXPECT_FALSE(ends_[0][0].released);
  EXPECT_EQ(ends_[0][0].status,
            absl::DeadlineExceededError(
                "fake:0, stream to the device, offset 0, 8388608 bytes: "
                "deadline exceeded: no copy has ended for 8s, 3 under way"));
  EXPECT_EQ(transport_->pending(), 1);
  EXPECT_EQ(transport_->stats().quarantined_bytes, 3 * kMiB);

  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  ASSERT_EQ(ends_[0].size(), 2u);
  EXPECT_FALSE(ends_[0][1].late);
  EXPECT_TRUE(ends_[0][1].released);
  // Some of it never moved.
  EXPECT_TRUE(absl::IsDeadlineExceeded(ends_[0][1].status));
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 5);
  EXPECT_EQ(transport_->stats().quarantined_bytes, 0);
}

TEST_F(DeviceLateTest, ALateMoveThatLandedWholeIsReleasedAsOk) {
  FillRandom(absl::MakeSpan(dram_).first(kMiB), 9);
  Hang(DeviceCallKind::kToDevice, 0);
  BeginTimed(0, kDown, 0, kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); }));
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  ASSERT_EQ(ends_[0].size(), 2u);
  EXPECT_TRUE(ends_[0][1].released);
  EXPECT_TRUE(ends_[0][1].status.ok()) << ends_[0][1].status;
  EXPECT_TRUE(SameBytes(BytesOf(fake(), space_->At(0), kMiB),
                        absl::MakeSpan(dram_).first(kMiB)));
}

// The device has none of their bytes: they are free at once.
TEST_F(DeviceLateTest, WhatWaitsBehindASilentStreamEndsAndIsFree) {
  Hang(DeviceCallKind::kToHost, 0);
  BeginTimed(0, kUp, 0, 4 * kMiB);
  BeginTimed(1, kUp, 4 * kMiB, kMiB);
  EXPECT_TRUE(
      clock().RunUntil([&] { return !ends_[0].empty() && !ends_[1].empty(); }));
  EXPECT_TRUE(ends_[0][0].late);
  EXPECT_TRUE(absl::IsDeadlineExceeded(EndOf(1))) << EndOf(1);
  BeginTimed(2, kUp, 8 * kMiB, kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[2].empty(); }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(EndOf(2))) << EndOf(2);
  EXPECT_EQ(transport_->pending(), 1);
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
}

TEST_F(DeviceLateTest, TheOtherDirectionIsNotLate) {
  Hang(DeviceCallKind::kToHost, 0);
  BeginTimed(0, kUp, 0, kMiB);
  for (uint64_t tag = 1; tag < 20; ++tag) {
    BeginTimed(tag, kDown, 8 * kMiB, kMiB);
    Pass(absl::Seconds(1));
    EXPECT_TRUE(EndOf(tag).ok()) << EndOf(tag);
  }
  EXPECT_TRUE(ends_[0][0].late);
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
}

// How long the device is silent counts, not how long a move takes.
TEST_F(DeviceLateTest, WhatWaitsBehindMuchOfOursIsNotLate) {
  Move slow = MoveOf(0, kDown, 0, 32 * kMiB, IoClass::kDemand);
  slow.timeout = 4 * kMiBTime;
  transport_->Begin(slow);
  Move behind = MoveOf(1, kDown, 32 * kMiB, kMiB, IoClass::kDemand);
  behind.timeout = 4 * kMiBTime;
  transport_->Begin(behind);
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  EXPECT_TRUE(EndOf(0).ok()) << EndOf(0);
  EXPECT_TRUE(EndOf(1).ok()) << EndOf(1);
}

// A process that did not run has not looked.
TEST_F(DeviceLateTest, TimeInWhichNothingLookedIsNotCounted) {
  Hang(DeviceCallKind::kToDevice, 0);
  BeginTimed(0, kDown, 0, kMiB);
  clock().RemoveStep(step_);
  step_ = -1;
  clock().JumpTo(clock().Now() + absl::Hours(3));
  fake().Release();  // its end and the look come at one time
  EXPECT_TRUE(clock().RunUntil([&] {
    Poll();
    return transport_->pending() == 0;
  }));
  EXPECT_TRUE(EndOf(0).ok()) << EndOf(0);
}

TEST_F(DeviceLateTest, SilentAfterAGapItHasItsWholeTimeoutAgain) {
  Hang(DeviceCallKind::kToDevice, 0);
  BeginTimed(0, kDown, 0, kMiB);
  clock().RemoveStep(step_);
  clock().JumpTo(clock().Now() + absl::Hours(3));
  PollByItself();
  const absl::Time back = clock().Now();
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); }));
  EXPECT_GE(clock().Now() - back, kTimeout);
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
}

TEST_F(DeviceLateTest, WithoutATimeoutItWaitsForEver) {
  Hang(DeviceCallKind::kToDevice, 0);
  Begin(0, kDown, 0, kMiB);
  Pass(absl::Minutes(10));
  EXPECT_TRUE(ends_[0].empty());
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  EXPECT_TRUE(EndOf(0).ok());
}

TEST_F(DeviceLateTest, CancelledThenSilentItIsLateAndEndsAsCancelled) {
  Hang(DeviceCallKind::kToDevice, 1);
  BeginTimed(0, kDown, 0, 8 * kMiB);
  transport_->Cancel(kDown, 0);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); }));
  EXPECT_TRUE(ends_[0][0].late);
  fake().Release();
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  ASSERT_EQ(ends_[0].size(), 2u);
  EXPECT_TRUE(absl::IsCancelled(ends_[0][1].status));
}

TEST_F(DeviceLateTest, ALateMoveOfADeviceThatFailsIsReleasedWithItsCode) {
  Hang(DeviceCallKind::kToHost, 0);
  BeginTimed(0, kUp, 0, kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); }));
  fake().Break("cudaErrorLaunchTimeout (702)");
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  ASSERT_EQ(ends_[0].size(), 2u);
  EXPECT_TRUE(ends_[0][1].released);
  EXPECT_TRUE(absl::IsUnavailable(ends_[0][1].status));
}

TEST_F(DeviceLateTest, DestroyedWithALateMoveItLeavesTheSpaceBehind) {
  Hang(DeviceCallKind::kToHost, 0);
  BeginTimed(0, kUp, 0, kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return !ends_[0].empty(); }));
  clock().RemoveStep(step_);
  step_ = -1;
  transport_.reset();
  space_.reset();
  EXPECT_EQ(fake().bytes().used_bytes(), kBytes);
}

}  // namespace
}  // namespace terrace
