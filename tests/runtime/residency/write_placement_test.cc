#include "runtime/residency/write_placement.h"

#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using Room = WriteTarget::Room;

constexpr int64_t kCopyBytes = 2 * kPage;

// Tier 2 was measured to be a hundred times as fast as tier 1.
const std::vector<PathPrior> kSecondIsFaster = {{1e6, 1e6}, {1e8, 1e8}};

class WritePlacementTest : public testing::Test {
 protected:
  explicit WritePlacementTest(const TestMachineOptions& options = {},
                              const std::vector<PathPrior>& priors = {})
      : core_(options, priors) {}

  // A write to that tier ends.
  void Written(TierId tier, absl::Status status) {
    placement_.OnMoved({.edge = {kDramTier, tier},
                        .status = std::move(status),
                        .failures = placement_.failures(tier)});
  }
  static absl::Status Refused(const char* what) {
    return WithIoFault(absl::UnavailableError(what), {.error = EIO});
  }
  TierState StateOf(TierId tier) { return placement_.StatsOf(tier).state; }

  TestCore core_;
  WritePlacement& placement_ = core_.placement;
  Tensor& tensor_ = core_.Add("a");  // at home on tier 1
};

TEST_F(WritePlacementTest, AmongEqualsATensorStaysAtHome) {
  const WriteTarget target = placement_.ChooseTarget(tensor_);
  EXPECT_EQ(target.room, Room::kFound);
  EXPECT_EQ(target.tier, kDisk0);
  EXPECT_TRUE(target.second.empty());
}

TEST_F(WritePlacementTest, NoTierThatRefusedTheTensorIsAskedAgain) {
  tensor_.refusals.Add(kDisk0, Refused("EIO"));
  WriteTarget target = placement_.ChooseTarget(tensor_);
  EXPECT_EQ(target.tier, kDisk1);
  EXPECT_EQ(target.second.extent().size_bytes, kCopyBytes);
  tensor_.refusals.Add(kDisk1, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).room, Room::kNone);
}

TEST_F(WritePlacementTest, ATierThatRefusedIsLeftForAnother) {
  Written(kDisk0, Refused("EIO"));
  EXPECT_EQ(StateOf(kDisk0), TierState::kRefusesWrites);
  EXPECT_TRUE(placement_.StatsOf(kDisk0).degraded);
  EXPECT_EQ(placement_.StatsOf(kDisk0).write_error, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk1);
}

TEST_F(WritePlacementTest, OneWriteFindsOutWhetherItDoesBetter) {
  Written(kDisk0, Refused("EIO"));
  EXPECT_FALSE(placement_.trying());
  placement_.TryAgain();
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);
  EXPECT_TRUE(placement_.trying());
  Tensor& other = core_.Add("b");
  EXPECT_EQ(placement_.ChooseTarget(other).tier, kDisk1);
  Written(kDisk0, absl::OkStatus());
  EXPECT_FALSE(placement_.trying());
  EXPECT_EQ(StateOf(kDisk0), TierState::kHealthy);
}

TEST_F(WritePlacementTest, ATrialThatIsNotBegunOrCancelledTellsNothing) {
  for (const bool begun : {false, true}) {
    Written(kDisk0, Refused("EIO"));
    placement_.TryAgain();
    ASSERT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);
    if (begun) {
      Written(kDisk0, absl::CancelledError("gave way"));
    } else {
      placement_.GiveUp(kDisk0);
    }
    EXPECT_FALSE(placement_.trying());
    EXPECT_EQ(StateOf(kDisk0), TierState::kRefusesWrites);
  }
}

TEST_F(WritePlacementTest, WhoWaitsForATrialWaits) {
  Written(kDisk0, Refused("EIO"));
  Written(kDisk1, Refused("EIO"));
  placement_.TryAgain();
  Tensor& first = core_.Add("first");
  Tensor& second = core_.Add("second");
  EXPECT_EQ(placement_.ChooseTarget(first).tier, kDisk0);
  EXPECT_EQ(placement_.ChooseTarget(second).tier, kDisk1);
  EXPECT_EQ(placement_.ChooseTarget(tensor_).room, Room::kWait);
}

TEST_F(WritePlacementTest, WhereNoneIsTrustedItsOwnPlaceIsAskedFirst) {
  Written(kDisk0, Refused("EIO"));
  Written(kDisk1, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);
  tensor_.refusals.Add(kDisk0, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk1);
  EXPECT_EQ(placement_.ChooseTarget(core_.Add("b", kPage, kDisk1)).tier,
            kDisk1);
}

TEST_F(WritePlacementTest, NoneIsUsableSaysWhyOfEachAndTheFirstErrno) {
  Written(kDisk0, Refused("first: EIO"));
  Written(kDisk1, absl::ResourceExhaustedError("second: full"));
  const absl::Status none = placement_.NoneIsUsable();
  EXPECT_TRUE(absl::IsUnavailable(none));
  EXPECT_EQ(none.message(),
            "no usable path: all are degraded; first: EIO; second: full");
  EXPECT_EQ(IoFaultOf(none).error, EIO);
}

TEST_F(WritePlacementTest, ATierThatCannotBeReadIsToldUntilItCan) {
  placement_.OnMoved({.edge = {kDisk1, kDramTier}, .status = Refused("EIO")});
  EXPECT_EQ(StateOf(kDisk1), TierState::kUnreadable);
  placement_.OnMoved(
      {.edge = {kDisk1, kDramTier}, .status = absl::CancelledError("closing")});
  EXPECT_EQ(StateOf(kDisk1), TierState::kUnreadable);  // that says nothing
  placement_.OnMoved({.edge = {kDisk1, kDramTier}});
  EXPECT_EQ(StateOf(kDisk1), TierState::kHealthy);
}

TEST_F(WritePlacementTest, ANewTensorGoesWhereLeastIsPlaced) {
  EXPECT_EQ(placement_.ChooseHome({false, false}, kCopyBytes), kDisk1);
  EXPECT_EQ(placement_.ChooseHome({false, true}, kCopyBytes), kDisk0);
  EXPECT_EQ(placement_.ChooseHome({true, true}, kCopyBytes), kNoTier);
  Written(kDisk1, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseHome({false, false}, kCopyBytes), kDisk0);
}

TEST_F(WritePlacementTest, WhoCameFromElsewhereIsCounted) {
  placement_.OnRelocated(kDisk1);
  placement_.OnRelocated(kDisk1);
  EXPECT_EQ(placement_.StatsOf(kDisk1).tensors_moved_in, 2);
  EXPECT_EQ(placement_.StatsOf(kDisk0).tensors_moved_in, 0);
}

TEST_F(WritePlacementTest, ARateIsOfTheTimeInWhichItMoved) {
  Fault slow;
  slow.kind = FaultKind::kDelay;
  slow.delay = absl::Milliseconds(100);
  core_.machine.faults->FailAll(slow);
  core_.Write(tensor_);
  core_.transfers.StartDrain(tensor_, kDisk0, {});
  core_.SettleFor(absl::Seconds(1));
  placement_.Measure();
  // 8192 bytes in a tenth of a second, and nothing in all others.
  EXPECT_DOUBLE_EQ(placement_.StatsOf(kDisk0).traffic.write_bytes_per_second,
                   81920);
  EXPECT_EQ(placement_.StatsOf(kDisk0).traffic.read_bytes_per_second, 0);
  EXPECT_EQ(placement_.StatsOf(kDisk0).traffic.bytes_written, kCopyBytes);
  EXPECT_EQ(placement_.StatsOf(kDisk1).traffic.write_bytes_per_second, 0);
}

class FasterPlacementTest : public WritePlacementTest {
 protected:
  FasterPlacementTest() : WritePlacementTest({}, kSecondIsFaster) {}
};

TEST_F(FasterPlacementTest, TheFasterTierGetsIt) {
  const WriteTarget target = placement_.ChooseTarget(tensor_);
  EXPECT_EQ(target.tier, kDisk1);
  EXPECT_EQ(target.second.tier(), kDisk1);
  EXPECT_EQ(core_.resting.at(kDisk1).usage().used_bytes, kCopyBytes);
  EXPECT_EQ(tensor_.resting()->place.tier(),
            kDisk0);  // until it is whole there
}

TEST_F(FasterPlacementTest, FullItIsPassedOver) {
  const auto all = core_.resting.at(kDisk1).Allocate(64 * kPage, true);
  ASSERT_TRUE(all.ok());
  const WriteTarget target = placement_.ChooseTarget(tensor_);
  EXPECT_EQ(target.tier, kDisk0);
  EXPECT_TRUE(target.second.empty());
}

// Far memory above a path.
class MappedPlacementTest : public WritePlacementTest {
 protected:
  MappedPlacementTest() : WritePlacementTest({.far = 1, .paths = 1}) {}
};

TEST_F(MappedPlacementTest, OneThatRefusedIsLeftAndTriedAsAPathIs) {
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kFar0);
  placement_.GiveUp(kFar0);
  Written(kFar0, Refused("worn out"));
  EXPECT_EQ(placement_.StatsOf(kFar0).state, TierState::kRefusesWrites);
  EXPECT_EQ(placement_.StatsOf(kFar0).write_error, Refused("worn out"));
  EXPECT_EQ(placement_.StatsOf(kDisk0).state, TierState::kHealthy);
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);
  placement_.TryAgain();
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kFar0);
  EXPECT_TRUE(placement_.trying());
  Written(kFar0, absl::OkStatus());
  EXPECT_FALSE(placement_.trying());
  EXPECT_EQ(placement_.StatsOf(kFar0).state, TierState::kHealthy);
}

TEST_F(MappedPlacementTest, APathThatRefusedIsLeftForIt) {
  Tensor& other = core_.Add("b", kPage, kDisk0);
  Written(kDisk0, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(other).tier, kFar0);
}

TEST_F(MappedPlacementTest, OneThatCannotBeReadIsToldUntilItCan) {
  placement_.OnMoved({.edge = {kFar0, kDramTier}, .status = Refused("down")});
  EXPECT_EQ(placement_.StatsOf(kFar0).state, TierState::kUnreadable);
  EXPECT_EQ(placement_.StatsOf(kDisk0).state, TierState::kHealthy);
  placement_.OnMoved({.edge = {kFar0, kDramTier}});
  EXPECT_EQ(placement_.StatsOf(kFar0).state, TierState::kHealthy);
}

TEST_F(MappedPlacementTest, ANewTensorGoesToThePathWhileThatTakesWrites) {
  EXPECT_EQ(placement_.ChooseHome({false, false}, kCopyBytes), kDisk0);
  Written(kDisk0, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseHome({false, false}, kCopyBytes), kFar0);
}

// Two tiers with room for the first tensor alone; more must grow.
class GrowingPlacementTest : public WritePlacementTest {
 protected:
  GrowingPlacementTest()
      : WritePlacementTest({.path_bytes = kCopyBytes}, kSecondIsFaster) {
    full_ = *std::move(*core_.resting.at(kDisk1).Allocate(kCopyBytes, true));
  }
  Reservation full_;
};

TEST_F(GrowingPlacementTest, ATierThatGrowsIsWaitedForOnlyWithoutAHome) {
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);
  tensor_.refusals.Add(kDisk0, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).room, Room::kWait);
  core_.machine.background[1].RunAll();
  core_.Hear();
  EXPECT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk1);
}

TEST_F(GrowingPlacementTest, ALateTierIsNoTargetAndNoHome) {
  ASSERT_EQ(placement_.ChooseTarget(tensor_).tier, kDisk0);  // it grows
  std::vector<QueueError> errors;
  VirtualClock& clock = core_.machine.clock;
  for (int i = 0; i < 10; ++i) {
    clock.JumpTo(clock.Now() + absl::Milliseconds(125));
    core_.registrar.CheckGrowth(clock.Now(), &errors);
  }
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(StateOf(kDisk1), TierState::kRefusesWrites);
  EXPECT_EQ(placement_.ChooseHome({false, false}, kCopyBytes), kDisk0);
  tensor_.refusals.Add(kDisk0, Refused("EIO"));
  EXPECT_EQ(placement_.ChooseTarget(tensor_).room, Room::kNone);
}

}  // namespace
}  // namespace terrace
