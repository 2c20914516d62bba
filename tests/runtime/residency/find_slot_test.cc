// What the slots of a window have against a newcomer.
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

class FindSlotTest : public testing::Test {
 protected:
  // Two slots, both taken.
  FindSlotTest() {
    for (Tensor* const tensor : {&a_, &b_}) {
      core_.Rest(*tensor);
      Put(*tensor);
    }
  }

  void Put(Tensor& tensor) {
    FoundPlace found = Find(tensor);
    TERRACE_CHECK(found.space == Space::kFound);
    core_.transfers.StartFill(tensor, std::move(found.room), IoClass::kDemand);
    core_.Settle();
  }
  FoundPlace Find(Tensor& tensor, bool prefetch = false) {
    return core_.residency.FindSlot(queue_, window_, tensor, prefetch);
  }
  // One step of the queue asks in that order; the next one begins.
  void Trace(std::vector<Tensor*> tensors) {
    for (Tensor* const tensor : tensors) {
      core_.planner.OnAccess(queue_, tensor->id);
    }
    core_.planner.BeginStep(queue_);
  }
  // A hold, and the queue's pin if it has one.
  void Pin(Tensor& tensor, int64_t queue) {
    tensor.Hold(kDramTier, Access::kRead);
    core_.pins.Grant(tensor, kDramTier, queue, Access::kRead);
  }

  TestCore core_;
  Customer& customer_ = core_.Open(kPage, 2);
  Window& window_ = *customer_.window;
  const int64_t queue_ = customer_.id;
  Tensor& a_ = core_.Add("a");
  Tensor& b_ = core_.Add("b");
  Tensor& c_ = core_.Add("c");
};

TEST_F(FindSlotTest, AFreeSlotIsTaken) {
  core_.residency.Drop(b_);
  const FoundPlace found = Find(c_);
  EXPECT_EQ(found.space, Space::kFound);
  EXPECT_EQ(window_.SlotOf(found.room.extent()), 1);
  EXPECT_NE(a_.at(kDramTier), nullptr);
}

TEST_F(FindSlotTest, OfCleanOnesTheOneNeededLastGoes) {
  Trace({&b_, &c_, &a_});
  EXPECT_EQ(window_.SlotOf(Find(c_).room.extent()), 0);
  EXPECT_EQ(a_.at(kDramTier), nullptr);
  EXPECT_NE(b_.at(kDramTier), nullptr);
}

TEST_F(FindSlotTest, APrefetchTakesNothingNeededNoLater) {
  Trace({&a_, &b_, &c_});
  EXPECT_EQ(Find(c_, /*prefetch=*/true).space, Space::kFailed);
  EXPECT_NE(a_.at(kDramTier), nullptr);
  EXPECT_NE(b_.at(kDramTier), nullptr);
  EXPECT_EQ(Find(c_).space, Space::kFound);  // one that was asked for does
}

TEST_F(FindSlotTest, APrefetchTakesWhatIsNeededLater) {
  Trace({&c_, &a_, &b_});
  EXPECT_EQ(window_.SlotOf(Find(c_, /*prefetch=*/true).room.extent()), 1);
}

TEST_F(FindSlotTest, OwnPinsAreToldFromThoseOfOthers) {
  Pin(a_, queue_);
  Pin(b_, queue_);
  EXPECT_EQ(Find(c_).space, Space::kOwnPins);
  Pin(b_, queue_ + 1);
  EXPECT_EQ(Find(c_).space, Space::kWait);
}

TEST_F(FindSlotTest, AHoldIsWaitedFor) {
  Pin(a_, queue_);
  b_.Hold(kDramTier, Access::kRead);
  EXPECT_EQ(Find(c_).space, Space::kWait);
}

TEST_F(FindSlotTest, AWriteBackIsWaitedForAsSuch) {
  Pin(a_, queue_);
  core_.Update(b_);
  core_.transfers.StartDrain(b_, kDisk0, {});
  EXPECT_EQ(Find(c_).space, Space::kWriteBack);
}

TEST_F(FindSlotTest, ADirtyOneWillBeWritten) {
  Pin(a_, queue_);
  core_.Update(b_);
  EXPECT_EQ(Find(c_).space, Space::kWait);
}

TEST_F(FindSlotTest, AWriteBackThatGaveUpIsTheReason) {
  core_.Update(a_);
  a_.refusals.GiveUp(absl::UnavailableError("EIO"));
  Pin(b_, queue_);
  const FoundPlace found = Find(c_);
  EXPECT_EQ(found.space, Space::kOwnPins);
  EXPECT_EQ(found.failure, absl::UnavailableError("EIO"));
}

TEST_F(FindSlotTest, WithNothingElseItIsTheFailure) {
  for (Tensor* const tensor : {&a_, &b_}) {
    core_.Update(*tensor);
    tensor->refusals.GiveUp(absl::UnavailableError("EIO"));
  }
  const FoundPlace found = Find(c_);
  EXPECT_EQ(found.space, Space::kFailed);
  EXPECT_EQ(found.failure, absl::UnavailableError("EIO"));
  EXPECT_TRUE(found.room.empty());
}

TEST_F(FindSlotTest, WithoutAPlaceBelowNothingLeaves) {
  core_.residency.Drop(a_);
  Tensor& homeless = core_.Add("homeless", kPage, kNoTier);
  FoundPlace slot = Find(homeless);
  homeless.BeginOverwrite(std::move(slot.room));
  core_.Update(homeless);
  Pin(b_, queue_);
  const FoundPlace found = Find(c_);
  EXPECT_EQ(found.space, Space::kOwnPins);
  EXPECT_TRUE(absl::IsResourceExhausted(found.failure)) << found.failure;
}

TEST_F(FindSlotTest, ALateSlotSaysWhy) {
  core_.residency.Drop(a_);
  Reservation room = window_.Take(0, a_, 2 * kPage);
  core_.residency.OnGone(a_, &room, absl::DeadlineExceededError("late"));
  Pin(b_, queue_);
  const FoundPlace found = Find(c_);
  EXPECT_EQ(found.space, Space::kOwnPins);
  EXPECT_EQ(found.failure, absl::DeadlineExceededError("late"));
  room.Reset();
  EXPECT_EQ(Find(c_).space, Space::kFound);
}

TEST_F(FindSlotTest, TheOthersOfAGroupAreKeptAndOnesPlacedForItToo) {
  core_.residency.Drop(a_);
  const FoundPlace placed = Find(c_);  // its copy is not there yet
  core_.residency.Keep(b_);
  Tensor& d = core_.Add("d");
  EXPECT_EQ(Find(d).space, Space::kFailed);
  EXPECT_NE(b_.at(kDramTier), nullptr);
  core_.residency.EndKeep();
  EXPECT_EQ(window_.SlotOf(Find(d).room.extent()), 1);
}

}  // namespace
}  // namespace terrace
