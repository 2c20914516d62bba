// Which link a group's wait counts at: the edges are told by where tensors
// rest, the times by the clock that the test turns.
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/mover/admission.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

constexpr absl::Duration kWait = absl::Milliseconds(100);

class BlockedTest : public AdmissionTest {
 protected:
  explicit BlockedTest(const TestMachineOptions& options)
      : AdmissionTest(options) {}

  Tensor& AddOn(const std::string& name, TierId tier) {
    Tensor& tensor = core_.Add(name, kPage, tier);
    core_.Rest(tensor);
    return tensor;
  }
  void Pass(absl::Duration time) {
    core_.machine.clock.JumpTo(core_.machine.clock.Now() + time);
  }
  absl::Duration Blocked(TierId from, TierId to) const {
    return core_.links.blocked({from, to});
  }
  absl::Duration BlockedAtAll() const {
    absl::Duration sum;
    for (const TierId tier : core_.resting.ids()) {
      sum += Blocked(kDramTier, tier) + Blocked(tier, kDramTier);
    }
    return sum;
  }
};

// Far memory and two disks.
class BlockedByReadTest : public BlockedTest {
 protected:
  BlockedByReadTest() : BlockedTest({.far = 1}) {}

  Tensor& far_ = AddOn("far", kFar0);
  Tensor& a_ = AddOn("a", kDisk0);
  Tensor& b_ = AddOn("b", kDisk1);
  Customer& customer_ = core_.Open(kPage, 2);
  Customer& other_ = core_.Open(kPage, 2);
};

TEST_F(BlockedByReadTest, ItCountsAtTheLinkOfWhatArrivesLast) {
  for (Tensor* const last : {&a_, &b_}) {
    const TierId tier = last->resting()->place.tier();
    const absl::Duration before = Blocked(tier, kDramTier);
    const absl::Duration all = BlockedAtAll();
    Push(customer_, {Read(a_), Read(b_)});
    Admit(customer_);
    Pass(kWait);
    std::vector<Arrival> arrivals = core_.Settle();
    ASSERT_EQ(arrivals.size(), 2u);
    if (arrivals[1].tensor != last) std::swap(arrivals[0], arrivals[1]);
    Hear(arrivals[0]);
    Pass(kWait / 2);
    Hear(arrivals[1]);
    EXPECT_EQ(Blocked(tier, kDramTier) - before, kWait * 3 / 2);
    EXPECT_EQ(BlockedAtAll() - all, kWait * 3 / 2);
    EndPins(Take(customer_), PinEnd::kUnchanged);
    core_.residency.Drop(a_);
    core_.residency.Drop(b_);
  }
}

TEST_F(BlockedByReadTest, AMappedTiersLinkCountsAsADisks) {
  Push(customer_, {Update(far_)});
  Admit(customer_);
  Pass(kWait);
  Hear(core_.Settle());
  EXPECT_EQ(Take(customer_).size(), 1u);
  EXPECT_EQ(Blocked(kFar0, kDramTier), kWait);
  EXPECT_EQ(BlockedAtAll(), kWait);
  const Stats stats = core_.report().MakeStats({});
  ASSERT_EQ(stats.links.size(), 6u);
  EXPECT_EQ(stats.links[1].from, "far:node1");
  EXPECT_EQ(stats.links[1].seconds_blocked, 0.1);
  EXPECT_EQ(stats.links[0].seconds_blocked, 0);
}

TEST_F(BlockedByReadTest, WhatIsThereOrOverwrittenWaitsForNothing) {
  core_.Fetch(a_);
  Push(customer_, {Read(a_), Overwrite(b_)});
  Pass(kWait);
  Admit(customer_);
  EXPECT_EQ(Take(customer_).size(), 1u);
  EXPECT_EQ(BlockedAtAll(), absl::ZeroDuration());
}

TEST_F(BlockedByReadTest, WhileTheQueueHoldsAPinNothingCounts) {
  core_.Fetch(a_);
  Push(customer_, {Read(a_)});
  Push(customer_, {Read(b_)});
  Admit(customer_);
  std::vector<ReadyGroup> first = Take(customer_);
  ASSERT_EQ(first.size(), 1u);
  Pass(kWait);
  EndPins(std::move(first), PinEnd::kUnchanged);
  Admit(customer_);
  Pass(kWait / 4);
  Admit(customer_);
  Hear(core_.Settle());
  EXPECT_EQ(Take(customer_).size(), 1u);
  EXPECT_EQ(Blocked(kDisk1, kDramTier), kWait / 4);
  EXPECT_EQ(BlockedAtAll(), kWait / 4);
}

TEST_F(BlockedByReadTest, OfTwoGroupsAtOnceOnlyTheFirstIsWaitedFor) {
  Push(customer_, {Read(a_)});
  Push(customer_, {Read(b_)});
  Admit(customer_);
  Pass(kWait);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 2u);
  Hear(arrivals[0]);
  Pass(kWait);
  Hear(arrivals[1]);
  EXPECT_EQ(Take(customer_).size(), 2u);
  EXPECT_EQ(BlockedAtAll(), kWait);
}

TEST_F(BlockedByReadTest, AQueueWaitsForWhateverIsReadyFirst) {
  Push(customer_, {Read(a_)});
  Admit(customer_);
  Pass(kWait);
  Push(customer_, {Read(b_)});
  Admit(customer_);
  Pass(kWait);
  std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 2u);
  if (arrivals[0].tensor != &b_) std::swap(arrivals[0], arrivals[1]);
  Hear(arrivals[0]);
  EndPins(Take(customer_), PinEnd::kUnchanged);
  Admit(customer_);
  Pass(kWait / 4);
  Hear(arrivals[1]);
  EXPECT_EQ(Blocked(kDisk1, kDramTier), 2 * kWait);
  EXPECT_EQ(Blocked(kDisk0, kDramTier), kWait / 4);
  EXPECT_EQ(BlockedAtAll(), kWait * 9 / 4);
}

TEST_F(BlockedByReadTest, EachQueueThatWaitsCounts) {
  for (Customer* const each : {&customer_, &other_}) {
    Push(*each, {Read(a_)});
    Admit(*each);
    Pass(kWait);
  }
  Hear(core_.Settle());
  EXPECT_EQ(Blocked(kDisk0, kDramTier), 3 * kWait);
  EXPECT_EQ(BlockedAtAll(), 3 * kWait);
}

TEST_F(BlockedByReadTest, APinOfAnotherQueueIsNoLink) {
  core_.Fetch(a_);
  Push(other_, {Read(a_)});
  Admit(other_);
  Push(customer_, {Update(a_)});
  Admit(customer_);
  Pass(kWait);
  EndPins(Take(other_), PinEnd::kUnchanged);
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cause, WaitCause::kSpace);
  EXPECT_EQ(BlockedAtAll(), absl::ZeroDuration());
}

TEST_F(BlockedByReadTest, AReadThatFailsCountsNowhere) {
  core_.machine.faults->FailCall(
      1, {.kind = FaultKind::kError, .error = ENODEV}, CallFilter::kReads);
  Push(customer_, {Read(a_)});
  Admit(customer_);
  Pass(kWait);
  Hear(core_.Settle());
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_FALSE(ready[0].grants.ok());
  EXPECT_EQ(BlockedAtAll(), absl::ZeroDuration());
  Push(customer_, {Read(a_)});  // nor with the next group's
  Admit(customer_);
  Pass(kWait / 2);
  Hear(core_.Settle());
  EXPECT_EQ(BlockedAtAll(), kWait / 2);
}

TEST_F(BlockedByReadTest, AWriterWaitsForTheLinkThatItsTensorLeavesBy) {
  for (Tensor* const tensor : {&far_, &b_}) {
    const TierId tier = tensor->resting()->place.tier();
    core_.Fetch(*tensor);
    core_.Update(*tensor);
    core_.transfers.StartDrain(*tensor, tier, {});
    core_.Hear();  // it moves
    Push(customer_, {Update(*tensor)});
    Admit(customer_);
    Pass(kWait);
    Hear(core_.Settle());
    Admit(customer_);
    EndPins(Take(customer_), PinEnd::kUnchanged);
    EXPECT_EQ(Blocked(kDramTier, tier), kWait);
  }
  EXPECT_EQ(BlockedAtAll(), 2 * kWait);
}

// Memory for one window of two slots, and nothing beside it; two disks.
class BlockedByWriteTest : public BlockedTest {
 protected:
  BlockedByWriteTest() : BlockedTest({.budget_bytes = 4 * kPage}) {}

  Tensor& a_ = AddOn("a", kDisk0);
  Tensor& b_ = AddOn("b", kDisk1);
  Tensor& c_ = AddOn("c", kDisk0);
  Customer& customer_ = core_.Open(kPage, 2);
};

TEST_F(BlockedByWriteTest, OfTwoWriteBacksTheOneThatMakesRoomCounts) {
  for (const int hangs : {0, 1}) {
    Push(customer_, {Overwrite(a_), Overwrite(b_)});
    Admit(customer_);
    EndPins(Take(customer_), PinEnd::kPublish);
    core_.machine.faults->FailFile(hangs, {.kind = FaultKind::kNever},
                                   CallFilter::kWrites);
    core_.transfers.StartDrain(a_, kDisk0, {});
    core_.transfers.StartDrain(b_, kDisk1, {});
    Push(customer_, {Overwrite(c_)});
    Admit(customer_);
    Pass(kWait);
    Hear(core_.Settle());
    Admit(customer_);
    std::vector<ReadyGroup> ready = Take(customer_);
    ASSERT_EQ(ready.size(), 1u);
    EXPECT_EQ(ready[0].cause, WaitCause::kWriteBack);
    const TierId ended = hangs == 0 ? kDisk1 : kDisk0;
    EXPECT_EQ(Blocked(kDramTier, ended), kWait);
    EXPECT_EQ(BlockedAtAll(), (hangs == 0 ? 1 : 2) * kWait);
    core_.machine.faults->Clear();
    EndPins(std::move(ready), PinEnd::kUnchanged);
    Hear(core_.Settle());
    for (Tensor* const each : {&a_, &b_, &c_}) {
      if (each->at(kDramTier) != nullptr) core_.residency.Drop(*each);
    }
  }
}

// Beside windows of two slots and of one, room for one tensor.
class BlockedByResidentTest : public BlockedTest {
 protected:
  BlockedByResidentTest() : BlockedTest({.budget_bytes = 8 * kPage}) {}

  Tensor& a_ = AddOn("a", kDisk0);
  Tensor& b_ = AddOn("b", kDisk0);
  Tensor& c_ = AddOn("c", kDisk0);
  Tensor& resident_ = core_.Add("resident", kPage, kDisk1);
  Customer& customer_ = core_.Open(kPage, 2);
  Customer& other_ = core_.Open(kPage, 1);
};

TEST_F(BlockedByResidentTest, RoomThatAWriteBackMakesIsWaitedForThere) {
  for (Tensor* const each : {&c_, &resident_}) {
    core_.planner.OnAccess(customer_.id, each->id);
  }
  core_.planner.BeginStep(customer_.id);     // c is needed first
  core_.residency.windows().HoldRoom(true);  // the window's slots are taken
  Push(customer_, {Read(a_), Read(b_)});
  Admit(customer_);
  Hear(core_.Settle());
  core_.residency.windows().HoldRoom(false);
  core_.Write(resident_);
  Push(other_, {Read(a_), Read(b_)});
  Admit(other_);
  EndPins(Take(customer_), PinEnd::kUnchanged);
  Push(customer_, {Read(c_)});
  Admit(customer_);
  EXPECT_TRUE(core_.residency.residents().IsLeaving(resident_));
  Pass(kWait);
  Hear(core_.Settle());
  Admit(customer_);
  Hear(core_.Settle());
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cause, WaitCause::kSpace);
  const TierId written = resident_.resting()->place.tier();
  EXPECT_EQ(Blocked(kDramTier, written), kWait);
  EXPECT_EQ(BlockedAtAll(), kWait);
}

}  // namespace
}  // namespace terrace
