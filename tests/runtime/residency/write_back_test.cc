#include "runtime/residency/write_back.h"

#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::IsEmpty;

constexpr int64_t kQueue = 0;
constexpr int64_t kWrittenBytes = 2 * kPage;

class WriteBackTest : public testing::Test {
 protected:
  WriteBackTest() { in_slot_.customer = kQueue; }

  // In a slot of the window, newer than below.
  Tensor& AddInSlot(int slot) {
    Tensor& tensor = core_.Add(slot == 0 ? "in slot" : "in other slot");
    tensor.BeginOverwrite(window_.Take(slot, tensor, kWrittenBytes));
    core_.Update(tensor);
    return tensor;
  }
  // Outside all windows, newer than below.
  Tensor& AddResident() {
    Tensor& tensor = core_.Add("resident");
    core_.Write(tensor);
    return tensor;
  }
  void Start() { write_back_.Start(&errors_); }
  void Fail(Tensor& tensor, TierId tier, absl::Status why, bool late = false) {
    write_back_.OnWriteFailed({.kind = Arrival::Kind::kWriteFailed,
                               .tensor = &tensor,
                               .edge = {kDramTier, tier},
                               .status = std::move(why),
                               .late = late},
                              /*is_registered=*/true, &errors_);
  }
  // Both tiers have refused it.
  void FailForGood(Tensor& tensor) {
    Fail(tensor, kDisk0, absl::UnavailableError("first"));
    Fail(tensor, kDisk1, absl::UnavailableError("second"));
  }

  TestCore core_;
  WriteBack& write_back_ = core_.write_back;
  Window& window_ = *core_.Open(kPage, 2).window;
  std::vector<QueueError> errors_;
  Tensor& in_slot_ = AddInSlot(0);
};

TEST_F(WriteBackTest, WhatIsInAWindowGoesDownAResidentStays) {
  Tensor& resident = AddResident();
  write_back_.OnDirty(in_slot_);
  write_back_.OnDirty(resident);
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kSealing);
  EXPECT_EQ(resident.drain(), Drain::kNone);
}

TEST_F(WriteBackTest, WhatIsUsedOrHasNoPlaceOrGaveUpStays) {
  in_slot_.Hold(kDramTier, Access::kRead);
  write_back_.OnDirty(in_slot_);
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
  in_slot_.Unhold(kDramTier, Access::kRead);
  Start();  // it is not remembered: its pin's end says so again
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);

  in_slot_.refusals.GiveUp(absl::UnavailableError("EIO"));
  write_back_.OnDirty(in_slot_);
  Tensor& homeless = core_.Add("homeless", kPage, kNoTier);
  homeless.BeginOverwrite(window_.Take(1, homeless, kWrittenBytes));
  core_.Update(homeless);
  write_back_.OnDirty(homeless);
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
  EXPECT_EQ(homeless.drain(), Drain::kNone);
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(WriteBackTest, WhatIsReadForTheOtherTierGoesDownAfterIt) {
  in_slot_.BeginRead(kDramTier);
  write_back_.OnDirty(in_slot_);
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
  in_slot_.EndRead(kDramTier);
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kSealing);
}

TEST_F(WriteBackTest, WhatIsLostIsNotKept) {
  Tensor& resident = AddResident();
  for (Tensor* const tensor : {&in_slot_, &resident}) {
    tensor->Lose(absl::DataLossError("gone"));
    write_back_.OnDirty(*tensor);
  }
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
  EXPECT_FALSE(core_.residency.Evict(resident));  // dropped
  EXPECT_EQ(resident.at(kDramTier), nullptr);
  Tensor& next = core_.Add("next");
  const FoundPlace free =
      core_.residency.FindSlot(kQueue, window_, next, /*prefetch=*/false);
  const FoundPlace in_its_place =
      core_.residency.FindSlot(kQueue, window_, next, /*prefetch=*/false);
  EXPECT_EQ(in_its_place.space, Space::kFound);
  EXPECT_EQ(in_slot_.at(kDramTier), nullptr);
}

TEST_F(WriteBackTest, WhoLeavesIsDroppedOnceWritten) {
  Tensor& resident = AddResident();
  ASSERT_TRUE(core_.residency.Evict(resident));
  std::vector<Tensor*> leaving = {&resident};
  write_back_.StartLeaving(&leaving, &errors_);
  EXPECT_THAT(leaving, IsEmpty());
  for (const Arrival& each : core_.Settle()) write_back_.OnWritten(each);
  EXPECT_EQ(resident.at(kDramTier), nullptr);
  EXPECT_TRUE(resident.Fetchable());
  EXPECT_EQ(core_.residency.residents().leaving(), 0);
}

TEST_F(WriteBackTest, WhoIsHeldMeanwhileStays) {
  Tensor& resident = AddResident();
  ASSERT_TRUE(core_.residency.Evict(resident));
  std::vector<Tensor*> leaving = {&resident};
  write_back_.StartLeaving(&leaving, &errors_);
  resident.Hold(kDramTier, Access::kRead);
  for (const Arrival& each : core_.Settle()) write_back_.OnWritten(each);
  EXPECT_NE(resident.at(kDramTier), nullptr);
  EXPECT_FALSE(core_.residency.residents().IsLeaving(resident));
}

TEST_F(WriteBackTest, WhatOneTierRefusesGoesToAnother) {
  Fail(in_slot_, kDisk0, absl::UnavailableError("first"));
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(errors_[0].queue, -1);  // the tier's own report says so
  EXPECT_EQ(errors_[0].unwritten, nullptr);
  EXPECT_EQ(write_back_.failed(), 0u);
  Start();
  EXPECT_EQ(core_.transfers.DrainTier(in_slot_), kDisk1);
  for (const Arrival& each : core_.Settle()) write_back_.OnWritten(each);
  EXPECT_EQ(in_slot_.resting()->place.tier(), kDisk1);
  EXPECT_FALSE(in_slot_.refusals.Has(kDisk0));
  EXPECT_EQ(core_.placement.StatsOf(kDisk1).tensors_moved_in, 1);
}

TEST_F(WriteBackTest, WhatAllRefuseIsItsCustomersError) {
  FailForGood(in_slot_);
  ASSERT_EQ(errors_.size(), 2u);
  EXPECT_EQ(errors_[1].queue, kQueue);
  EXPECT_EQ(errors_[1].status, absl::UnavailableError("second"));
  EXPECT_EQ(errors_[1].unwritten, &in_slot_);
  EXPECT_EQ(write_back_.failed(), 1u);
  EXPECT_TRUE(in_slot_.refusals.gave_up());
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
}

TEST_F(WriteBackTest, ALateOneIsGivenUpAtOnce) {
  core_.machine.faults->FailCall(1, {.kind = FaultKind::kNever},
                                 CallFilter::kWrites);
  write_back_.OnDirty(in_slot_);
  Start();
  for (const Arrival& each : core_.SettleFor(absl::Seconds(3))) {
    write_back_.OnWriteFailed(each, /*is_registered=*/true, &errors_);
  }
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(errors_[0].unwritten, &in_slot_);
  EXPECT_TRUE(in_slot_.refusals.gave_up());
  write_back_.RetryFailed();  // its device may still read it
  EXPECT_TRUE(in_slot_.refusals.gave_up());
  EXPECT_EQ(write_back_.failed(), 1u);
}

TEST_F(WriteBackTest, OneThatNobodyKnowsIsNobodysError) {
  for (const bool late : {false, true}) {
    write_back_.OnWriteFailed({.tensor = &in_slot_,
                               .edge = {kDramTier, kDisk0},
                               .status = absl::UnavailableError("EIO"),
                               .late = late},
                              /*is_registered=*/false, &errors_);
    EXPECT_EQ(in_slot_.refusals.gave_up(), late);
  }
  EXPECT_THAT(errors_, IsEmpty());
  EXPECT_EQ(write_back_.failed(), 0u);
}

TEST_F(WriteBackTest, ACancelledOneIsNoErrorAndGoesDownLater) {
  Fail(in_slot_, kDisk0, absl::CancelledError("gave way"));
  EXPECT_THAT(errors_, IsEmpty());
  EXPECT_FALSE(in_slot_.refusals.Has(kDisk0));
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kSealing);
}

// Sealed, and not yet moving.
TEST_F(WriteBackTest, ASealedOneGivesWayToAWriterOnce) {
  for (const bool first : {true, false}) {
    write_back_.OnDirty(in_slot_);
    Start();
    core_.machine.executor.RunAll();
    std::deque<Message> messages;
    core_.inbox->Drain(&messages);
    const auto& sealed = std::get<Sealed>(std::get<Event>(messages.at(0)));
    write_back_.OnSealed(core_.transfers.OnSealed(sealed),
                         /*writer_waits=*/true);
    EXPECT_EQ(in_slot_.drain(), first ? Drain::kNone : Drain::kMoving);
  }
}

TEST_F(WriteBackTest, AMovingOneIsCancelledForAWriterOnce) {
  for (const bool first : {true, false}) {
    write_back_.OnDirty(in_slot_);
    Start();
    core_.Hear();  // it moves
    write_back_.Yield(in_slot_);
    const std::vector<Arrival> arrivals = core_.Settle();
    ASSERT_EQ(arrivals.size(), 1u);
    EXPECT_EQ(absl::IsCancelled(arrivals[0].status), first);
  }
}

TEST_F(WriteBackTest, AfterTheWriterItMayGiveWayAgain) {
  write_back_.Yield(in_slot_);  // nothing moves: nothing
  write_back_.OnDirty(in_slot_);
  Start();
  core_.Hear();
  write_back_.Yield(in_slot_);
  core_.Settle();
  write_back_.EndYield(in_slot_);
  write_back_.OnDirty(in_slot_);
  Start();
  core_.Hear();
  write_back_.Yield(in_slot_);
  EXPECT_TRUE(absl::IsCancelled(core_.Settle().at(0).status));
}

TEST_F(WriteBackTest, AFailedOneIsTriedAgainWhenAsked) {
  FailForGood(in_slot_);
  write_back_.RetryFailed();
  EXPECT_EQ(write_back_.failed(), 0u);
  EXPECT_FALSE(in_slot_.refusals.gave_up());
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kSealing);
}

TEST_F(WriteBackTest, WhatWasDroppedSinceIsNotTriedAgain) {
  FailForGood(in_slot_);
  core_.residency.Drop(in_slot_);
  EXPECT_TRUE(write_back_.Unwritten().ok());
  write_back_.RetryFailed();
  EXPECT_EQ(write_back_.failed(), 0u);
}

TEST_F(WriteBackTest, TheNextStepHearsOfItOnce) {
  FailForGood(in_slot_);
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue).ok());  // its step was open
  write_back_.SetUnsaid(in_slot_, kQueue);
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue + 1).ok());
  EXPECT_EQ(write_back_.TakeUnsaid(kQueue), absl::UnavailableError("second"));
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue).ok());
  write_back_.SetUnsaid(in_slot_, kQueue);
  write_back_.SetUnsaid(in_slot_, -1);
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue).ok());
}

TEST_F(WriteBackTest, WhatIsTriedAgainIsNotSaid) {
  FailForGood(in_slot_);
  write_back_.SetUnsaid(in_slot_, kQueue);
  write_back_.RetryFailed();
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue).ok());
}

TEST_F(WriteBackTest, WhatKeepsRoomThatNoQueueHasIsNamed) {
  FailForGood(in_slot_);
  EXPECT_TRUE(write_back_.Unwritten().ok());  // its queue has that slot
  core_.residency.windows().Close(window_);
  EXPECT_EQ(write_back_.Unwritten(),
            absl::UnavailableError("; not written back: 'in slot': second"));
}

TEST_F(WriteBackTest, AForgottenTensorIsInNoneOfItsLists) {
  FailForGood(in_slot_);
  write_back_.SetUnsaid(in_slot_, kQueue);
  write_back_.OnDirty(in_slot_);
  in_slot_.refusals.TryAgain();
  write_back_.Forget(in_slot_);
  EXPECT_EQ(write_back_.failed(), 0u);
  EXPECT_TRUE(write_back_.TakeUnsaid(kQueue).ok());
  Start();
  EXPECT_EQ(in_slot_.drain(), Drain::kNone);
}

TEST(WriteBackRoomTest, WhoLeavesWaitsForATierThatGrows) {
  TestCore core({.path_bytes = kWrittenBytes});
  const auto full = core.resting.at(kDisk1).Allocate(kWrittenBytes, true);
  Tensor& tensor = core.Add("a");
  core.Write(tensor);
  tensor.refusals.Add(kDisk0, absl::UnavailableError("EIO"));
  ASSERT_TRUE(core.residency.Evict(tensor));
  std::vector<Tensor*> leaving = {&tensor};
  std::vector<QueueError> errors;
  core.write_back.StartLeaving(&leaving, &errors);
  core.write_back.Start(&errors);
  EXPECT_EQ(tensor.drain(), Drain::kNone);
  core.machine.background[1].RunAll();
  core.Hear();
  core.write_back.Start(&errors);
  EXPECT_EQ(core.transfers.DrainTier(tensor), kDisk1);
  EXPECT_THAT(errors, IsEmpty());
}

}  // namespace
}  // namespace terrace
