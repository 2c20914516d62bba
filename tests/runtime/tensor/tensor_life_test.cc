// Each transition of the table in tensor.h, and what it may not begin from.
#include "runtime/tensor/tensor_life.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/tensor/tensor_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;

constexpr char kCheck[] = "internal error at .*tensor_life\\.cc";

TEST_F(TensorTest, ANewTensorIsNowhere) {
  EXPECT_EQ(tensor_.at(kDramTier), nullptr);
  EXPECT_EQ(tensor_.resting(), nullptr);
  EXPECT_EQ(tensor_.generation(), 0u);
  EXPECT_EQ(tensor_.customer, -1);
  EXPECT_EQ(tensor_.drain(), Drain::kNone);
  EXPECT_TRUE(tensor_.loss().ok());
  EXPECT_FALSE(tensor_.write_pinned());
  EXPECT_FALSE(tensor_.Fetchable());
  EXPECT_FALSE(tensor_.Arriving(kDramTier));
  EXPECT_FALSE(tensor_.Delivered(kDramTier));
  EXPECT_FALSE(tensor_.Pinned(kDramTier));
  EXPECT_FALSE(tensor_.Dirty(kDramTier));
  EXPECT_FALSE(tensor_.Idle(kDramTier));
}

TEST_F(TensorTest, GivePlaceIsAnEmptyPlaceBelow) {
  tensor_.GivePlace(disk_.Give(4096));
  ASSERT_NE(tensor_.resting(), nullptr);
  EXPECT_EQ(tensor_.resting(), tensor_.at(kDisk0));
  EXPECT_EQ(tensor_.resting()->state, CopyState::kPlace);
  EXPECT_EQ(tensor_.resting()->generation, 0u);
  EXPECT_EQ(tensor_.resting()->place.extent(), (Extent{4096, 8192}));
  EXPECT_FALSE(tensor_.Fetchable());
}

TEST_F(TensorDeathTest, ATensorHasOnePlaceAndItIsBelow) {
  EXPECT_DEATH(tensor_.GivePlace(memory_.Give(0)), kCheck);
  tensor_.GivePlace(disk_.Give(0));
  EXPECT_DEATH(tensor_.GivePlace(other_.Give(0)), kCheck);
}

TEST_F(TensorTest, AFillGoesFromFillingOverCheckingToWhole) {
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(8192), 11);
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kFilling);
  EXPECT_TRUE(tensor_.Arriving(kDramTier));
  EXPECT_FALSE(tensor_.Delivered(kDramTier));
  EXPECT_FALSE(tensor_.Idle(kDramTier));
  EXPECT_EQ(tensor_.transfer(), 11u);
  tensor_.Filled(kDramTier);
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kChecking);
  EXPECT_TRUE(tensor_.Arriving(kDramTier));
  tensor_.Checked(kDramTier);
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kWhole);
  EXPECT_EQ(tensor_.at(kDramTier)->generation, 1u);
  EXPECT_FALSE(tensor_.Arriving(kDramTier));
  EXPECT_TRUE(tensor_.Delivered(kDramTier));
  EXPECT_TRUE(tensor_.Idle(kDramTier));
  EXPECT_FALSE(tensor_.Dirty(kDramTier));
}

TEST_F(TensorTest, WhatIsWrongIsFilledOnceMoreIntoTheSameRoom) {
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(8192), 11);
  tensor_.Filled(kDramTier);
  tensor_.BeginFill(kDramTier, {}, 12);
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kFilling);
  EXPECT_EQ(tensor_.at(kDramTier)->place.extent(), (Extent{8192, 8192}));
  EXPECT_EQ(tensor_.transfer(), 12u);
}

TEST_F(TensorDeathTest, AFillNeedsAWholeNewestCopyBelow) {
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, memory_.Give(0), 1), kCheck);
  tensor_.GivePlace(disk_.Give(0));
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, memory_.Give(0), 1), kCheck);
  Overwrite();
  tensor_.Drop(kDramTier);  // below, it is not there
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, memory_.Give(0), 1), kCheck);
}

TEST_F(TensorDeathTest, AFillNeedsRoomThereAndNoCopy) {
  Rest();
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, {}, 1), kCheck);
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, other_.Give(0), 1), kCheck);
  tensor_.BeginFill(kDramTier, memory_.Give(0), 1);
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, {}, 2), kCheck);
  tensor_.Filled(kDramTier);
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, memory_.Give(8192), 2), kCheck);
  tensor_.Checked(kDramTier);
  EXPECT_DEATH(tensor_.BeginFill(kDramTier, {}, 2), kCheck);
}

TEST_F(TensorDeathTest, FilledAndCheckedComeInTheirOrder) {
  EXPECT_DEATH(tensor_.Filled(kDramTier), kCheck);
  EXPECT_DEATH(tensor_.Checked(kDramTier), kCheck);
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(0), 1);
  EXPECT_DEATH(tensor_.Checked(kDramTier), kCheck);
  tensor_.Filled(kDramTier);
  EXPECT_DEATH(tensor_.Filled(kDramTier), kCheck);
  tensor_.Checked(kDramTier);
  EXPECT_DEATH(tensor_.Checked(kDramTier), kCheck);
}

TEST_F(TensorTest, AFailedFillLeavesNoCopyAndHandsItsRoomOver) {
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(8192), 11);
  tensor_.Hold(kDramTier, Access::kUpdate);
  Reservation room = tensor_.FillFailed(kDramTier);
  EXPECT_EQ(room.tier(), kDramTier);
  EXPECT_EQ(room.extent(), (Extent{8192, 8192}));
  EXPECT_EQ(tensor_.at(kDramTier), nullptr);
  EXPECT_FALSE(tensor_.write_pinned());
  EXPECT_TRUE(tensor_.Fetchable());
  // Also of one that was being checked; and it can be had again.
  tensor_.BeginFill(kDramTier, memory_.Give(0), 12);
  tensor_.Filled(kDramTier);
  EXPECT_EQ(tensor_.FillFailed(kDramTier).extent(), (Extent{0, 8192}));
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
}

TEST_F(TensorDeathTest, AWholeCopyIsNoFillThatFails) {
  EXPECT_DEATH(tensor_.FillFailed(kDramTier), kCheck);
  Rest();
  Fetch();
  EXPECT_DEATH(tensor_.FillFailed(kDramTier), kCheck);
}

TEST_F(TensorTest, AnOverwriteBeginsUndefined) {
  tensor_.BeginOverwrite(memory_.Give(0));
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kUndefined);
  EXPECT_EQ(tensor_.at(kDramTier)->generation, 0u);
  EXPECT_TRUE(tensor_.Delivered(kDramTier));
  EXPECT_TRUE(tensor_.Idle(kDramTier));
  EXPECT_EQ(tensor_.generation(), 0u);
}

TEST_F(TensorDeathTest, AnOverwriteNeedsNoCopyThere) {
  Overwrite();
  EXPECT_DEATH(tensor_.BeginOverwrite(memory_.Give(8192)), kCheck);
}

TEST_F(TensorTest, ReadersAddUp) {
  Rest();
  Fetch();
  tensor_.Hold(kDramTier, Access::kRead);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_EQ(tensor_.at(kDramTier)->pins, 2);
  EXPECT_FALSE(tensor_.write_pinned());
  EXPECT_FALSE(tensor_.Idle(kDramTier));
  tensor_.Unhold(kDramTier, Access::kRead);
  EXPECT_TRUE(tensor_.Pinned(kDramTier));
  tensor_.Unhold(kDramTier, Access::kRead);
  EXPECT_FALSE(tensor_.Pinned(kDramTier));
  EXPECT_TRUE(tensor_.Idle(kDramTier));
}

TEST_F(TensorDeathTest, AWriterIsAlone) {
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kRead), kCheck);
  EXPECT_DEATH(tensor_.Unhold(kDramTier, Access::kRead), kCheck);
  Rest();
  Fetch();
  EXPECT_DEATH(tensor_.Unhold(kDramTier, Access::kRead), kCheck);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kUpdate), kCheck);
  tensor_.Unhold(kDramTier, Access::kRead);
  tensor_.Hold(kDramTier, Access::kUpdate);
  EXPECT_TRUE(tensor_.write_pinned());
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kRead), kCheck);
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kOverwrite), kCheck);
}

TEST_F(TensorDeathTest, AWriterWaitsForTheTransferOutAReaderDoesNot) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite();
  tensor_.BeginDrain(1);
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kUpdate), kCheck);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_EQ(tensor_.at(kDramTier)->pins, 1);
}

TEST_F(TensorTest, PublishMakesTheNextGenerationAndTheOneBelowStale) {
  Rest();
  Fetch();
  EXPECT_TRUE(tensor_.Fetchable());
  tensor_.Hold(kDramTier, Access::kUpdate);
  EXPECT_FALSE(tensor_.Dirty(kDramTier));  // a writer has it
  tensor_.Publish(kDramTier);
  tensor_.Unhold(kDramTier, Access::kUpdate);
  EXPECT_EQ(tensor_.generation(), 2u);
  EXPECT_EQ(tensor_.at(kDramTier)->generation, 2u);
  EXPECT_EQ(tensor_.at(kDramTier)->state, CopyState::kWhole);
  EXPECT_EQ(tensor_.resting()->generation, 1u);
  EXPECT_TRUE(tensor_.Dirty(kDramTier));
  EXPECT_FALSE(tensor_.Fetchable());
}

TEST_F(TensorDeathTest, PublishNeedsTheWritePin) {
  EXPECT_DEATH(tensor_.Publish(kDramTier), kCheck);
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(0), 3);
  tensor_.Hold(kDramTier, Access::kUpdate);
  EXPECT_DEATH(tensor_.Publish(kDramTier), kCheck);  // not whole yet
  tensor_.Filled(kDramTier);
  tensor_.Checked(kDramTier);
  tensor_.Unhold(kDramTier, Access::kUpdate);
  EXPECT_DEATH(tensor_.Publish(kDramTier), kCheck);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_DEATH(tensor_.Publish(kDramTier), kCheck);
}

TEST_F(TensorTest, ADrainIsSealedAndThenMoved) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite();
  tensor_.BeginDrain(5);
  EXPECT_EQ(tensor_.drain(), Drain::kSealing);
  EXPECT_EQ(tensor_.transfer(), 5u);
  EXPECT_FALSE(tensor_.Idle(kDramTier));
  EXPECT_TRUE(tensor_.Dirty(kDramTier));
  tensor_.BeginMove(/*in_place=*/true, 6);
  EXPECT_EQ(tensor_.drain(), Drain::kMoving);
  EXPECT_EQ(tensor_.transfer(), 6u);
  tensor_.Drained({}, 1);
  EXPECT_EQ(tensor_.drain(), Drain::kNone);
  EXPECT_FALSE(tensor_.Dirty(kDramTier));
  EXPECT_TRUE(tensor_.Idle(kDramTier));
  EXPECT_TRUE(tensor_.Fetchable());
  EXPECT_EQ(tensor_.resting()->state, CopyState::kWhole);
}

TEST_F(TensorDeathTest, ADrainNeedsAnIdleCopyAndAPlace) {
  Overwrite();
  EXPECT_DEATH(tensor_.BeginDrain(1), kCheck);  // nowhere to go
  tensor_.GivePlace(disk_.Give(0));
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_DEATH(tensor_.BeginDrain(1), kCheck);
  tensor_.Unhold(kDramTier, Access::kRead);
  tensor_.Hold(kDramTier, Access::kUpdate);
  EXPECT_DEATH(tensor_.BeginDrain(1), kCheck);
  tensor_.Unhold(kDramTier, Access::kUpdate);
  tensor_.BeginDrain(1);
  EXPECT_DEATH(tensor_.BeginDrain(2), kCheck);
  tensor_.EndDrain(/*late=*/false);
  tensor_.Drop(kDramTier);
  EXPECT_DEATH(tensor_.BeginDrain(2), kCheck);
}

TEST_F(TensorDeathTest, TheStepsOfADrainComeInTheirOrder) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite();
  EXPECT_DEATH(tensor_.BeginMove(true, 1), kCheck);
  EXPECT_DEATH(tensor_.Drained({}, 1), kCheck);
  EXPECT_DEATH(tensor_.EndDrain(false), kCheck);
  tensor_.BeginDrain(1);
  EXPECT_DEATH(tensor_.Drained({}, 1), kCheck);
  tensor_.BeginMove(true, 2);
  EXPECT_DEATH(tensor_.BeginMove(true, 3), kCheck);
}

TEST_F(TensorTest, AMoveInPlaceTearsTheCopyBelow) {
  Rest();
  Fetch();
  Update();
  tensor_.BeginDrain(1);
  EXPECT_EQ(tensor_.resting()->generation, 1u);
  tensor_.BeginMove(/*in_place=*/true, 2);
  EXPECT_EQ(tensor_.resting()->generation, 0u);
  EXPECT_EQ(tensor_.resting()->state, CopyState::kPlace);
  tensor_.EndDrain(/*late=*/false);
  EXPECT_EQ(tensor_.resting()->generation, 0u);  // torn for good
  EXPECT_TRUE(tensor_.Dirty(kDramTier));
  EXPECT_FALSE(tensor_.Fetchable());
}

TEST_F(TensorTest, AMoveToASecondPlaceLeavesTheFirstUntilItIsWhole) {
  Rest();
  Fetch();
  Update();
  tensor_.BeginDrain(1);
  tensor_.BeginMove(/*in_place=*/false, 2);
  EXPECT_EQ(tensor_.resting()->generation, 1u);
  EXPECT_EQ(tensor_.resting()->state, CopyState::kWhole);
  EXPECT_THAT(disk_.freed(), ElementsAre());
  tensor_.Drained(other_.Give(4096), 2);
  EXPECT_EQ(tensor_.resting()->place.tier(), kDisk1);
  EXPECT_EQ(tensor_.resting()->generation, 2u);
  EXPECT_EQ(tensor_.at(kDisk0), nullptr);
  EXPECT_THAT(disk_.freed(), ElementsAre(Extent{0, 8192}));
  EXPECT_TRUE(tensor_.Fetchable());
}

TEST_F(TensorDeathTest, ALateDrainLeavesAReadableCopyThatStays) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite();
  tensor_.BeginDrain(1);
  tensor_.BeginMove(/*in_place=*/true, 2);
  tensor_.EndDrain(/*late=*/true);
  EXPECT_EQ(tensor_.drain(), Drain::kLate);
  EXPECT_TRUE(tensor_.Dirty(kDramTier));
  EXPECT_FALSE(tensor_.Idle(kDramTier));
  tensor_.Hold(kDramTier, Access::kRead);
  tensor_.Unhold(kDramTier, Access::kRead);
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kUpdate), kCheck);
  EXPECT_DEATH(tensor_.Drop(kDramTier), kCheck);
  EXPECT_DEATH(tensor_.BeginDrain(3), kCheck);
  tensor_.Drained({}, 1);  // its device wrote it after all
  EXPECT_EQ(tensor_.drain(), Drain::kNone);
  EXPECT_TRUE(tensor_.Fetchable());
}

TEST_F(TensorTest, DropGivesTheRoomBackAndForgetsRefusals) {
  Rest();
  Fetch();
  tensor_.refusals.Add(kDisk0, absl::ResourceExhaustedError("full"));
  tensor_.refusals.GiveUp();
  const size_t before = memory_.freed().size();
  tensor_.Drop(kDramTier);
  EXPECT_EQ(tensor_.at(kDramTier), nullptr);
  EXPECT_EQ(memory_.freed().size(), before + 1);
  EXPECT_FALSE(tensor_.refusals.Has(kDisk0));
  EXPECT_FALSE(tensor_.refusals.gave_up());
  tensor_.Drop(kDramTier);  // none there: nothing
  EXPECT_EQ(memory_.freed().size(), before + 1);
}

TEST_F(TensorDeathTest, DropNeedsNoPinAndNothingUnderWay) {
  Rest();
  tensor_.BeginFill(kDramTier, memory_.Give(0), 1);
  EXPECT_DEATH(tensor_.Drop(kDramTier), kCheck);
  tensor_.Filled(kDramTier);
  EXPECT_DEATH(tensor_.Drop(kDramTier), kCheck);
  tensor_.Checked(kDramTier);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_DEATH(tensor_.Drop(kDramTier), kCheck);
  tensor_.Unhold(kDramTier, Access::kRead);
  Update();
  tensor_.BeginDrain(2);
  EXPECT_DEATH(tensor_.Drop(kDramTier), kCheck);
}

TEST_F(TensorTest, ALossIsForGood) {
  Rest();
  tensor_.Lose(absl::DataLossError("torn"));
  EXPECT_TRUE(absl::IsDataLoss(tensor_.loss()));
  EXPECT_FALSE(tensor_.Fetchable());
}

TEST_F(TensorDeathTest, ALossHasAReason) {
  EXPECT_DEATH(tensor_.Lose(absl::OkStatus()), kCheck);
}

TEST_F(TensorTest, WhatEndsGivesAllItsRoomBack) {
  {
    Tensor tensor({.name = "brief", .size_bytes = 1}, TensorId{1});
    tensor.GivePlace(disk_.Give(16384));
    tensor.BeginOverwrite(memory_.Give(4096));
  }
  EXPECT_THAT(disk_.freed(), ElementsAre(Extent{16384, 8192}));
  EXPECT_THAT(memory_.freed(), ElementsAre(Extent{4096, 8192}));
}

}  // namespace
}  // namespace terrace
