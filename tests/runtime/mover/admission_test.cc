// Which request is admitted, when it is ready, and with what.
#include "runtime/mover/admission.h"

#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AdmitTest : public AdmissionTest {
 protected:
  Tensor& a_ = AddResting("a");
  Tensor& b_ = AddResting("b");
  Customer& customer_ = core_.Open(kPage, 2);
  Customer& other_ = core_.Open(kPage, 2);
};

TEST_F(AdmitTest, WhatIsOverwrittenIsReadyAtOnce) {
  Push(customer_, {Overwrite(a_), Overwrite(b_)}, 7);
  Admit(customer_);
  std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].tag, 7u);
  EXPECT_EQ(ready[0].cause, WaitCause::kNone);
  ASSERT_EQ(ready[0].grants->size(), 2u);
  const Grant& second = (*ready[0].grants)[1];
  EXPECT_EQ(second.tensor, b_.id);
  const Extent from_start = {second.offset, second.size_bytes};
  EXPECT_EQ(core_.dram.Address(from_start), core_.Payload(b_).data());
  EXPECT_EQ(second.size_bytes, kPage);
  EXPECT_EQ(customer_.held_pins, 2);
  EXPECT_EQ(customer_.admitted, 0);
  EXPECT_THAT(customer_.waiting, IsEmpty());
  EXPECT_EQ(core_.admission.counts().demand_reads, 0);
  EXPECT_EQ(b_.customer, customer_.id);
  EndPins(std::move(ready), PinEnd::kPublish);
}

// What has memory outside of windows does not come to the next step.
TEST_F(AdmitTest, ATraceKnowsWhatStays) {
  core_.Fetch(a_);
  customer_.step = 1;
  Push(customer_, {Overwrite(a_), Overwrite(b_)});
  Admit(customer_);
  EndPins(Take(customer_), PinEnd::kPublish);
  core_.planner.BeginStep(customer_.id);
  std::vector<TensorId> next;
  ASSERT_TRUE(core_.planner.Upcoming(customer_.id, 9, &next));
  EXPECT_THAT(next, ElementsAre(b_.id));
}

// A group is foreseen if the last step had all of it.
TEST_F(AdmitTest, AFetchIsForeseenByTheLastStep) {
  Tensor& new_one = AddResting("new");
  const auto classes_of = [&](const std::vector<Want>& wants) {
    const size_t before = core_.transcript.size();
    Push(customer_, wants);
    Admit(customer_);
    Hear(core_.Settle());
    EndPins(Take(customer_), PinEnd::kUnchanged);
    std::vector<int> classes;
    for (size_t i = before; i < core_.transcript.size(); ++i) {
      const TranscriptLine& line = core_.transcript[i];
      if (line.event == TranscriptEvent::kMoveStarted) {
        classes.push_back(line.io_class);
      }
    }
    for (const Want& want : wants) {
      core_.residency.Drop(*core_.table.Find(want.tensor));
    }
    return classes;
  };
  constexpr auto kDemand = static_cast<int>(IoClass::kDemand);
  constexpr auto kForeseen = static_cast<int>(IoClass::kForeseen);
  EXPECT_THAT(classes_of({Read(a_)}),
              ElementsAre(kDemand));  // outside of steps
  customer_.step = 1;
  EXPECT_THAT(classes_of({Read(a_), Read(b_)}), ElementsAre(kDemand, kDemand));
  core_.planner.BeginStep(customer_.id);
  EXPECT_THAT(classes_of({Read(a_), Read(b_)}),
              ElementsAre(kForeseen, kForeseen));
  EXPECT_THAT(classes_of({Read(a_), Read(new_one)}),
              ElementsAre(kDemand, kDemand));
}

TEST_F(AdmitTest, WhatIsReadIsReadyOnceItsLastFetchIsWhole) {
  Push(customer_, {Read(a_), Update(b_)});
  Admit(customer_);
  EXPECT_THAT(Take(customer_), IsEmpty());
  EXPECT_EQ(customer_.admitted, 1);
  EXPECT_TRUE(core_.admission.HasWaiters(b_));
  core_.machine.clock.JumpTo(core_.machine.clock.Now() + absl::Seconds(0.1));
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 2u);
  Hear(arrivals[0]);
  EXPECT_THAT(Take(customer_), IsEmpty());
  Hear(arrivals[1]);
  std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_TRUE(ready[0].grants.ok());
  EXPECT_EQ(ready[0].cause, WaitCause::kRead);
  EXPECT_EQ(core_.admission.counts().demand_reads, 2);
  EXPECT_EQ(core_.admission.counts().hits(), 0);
  EXPECT_TRUE(b_.write_pinned());
  EXPECT_FALSE(core_.admission.HasWaiters(b_));
  EndPins(std::move(ready), PinEnd::kUnchanged);
}

TEST_F(AdmitTest, WhatIsThereIsAHit) {
  core_.Fetch(a_);
  Push(customer_, {Read(a_)});
  Admit(customer_);
  EXPECT_EQ(Take(customer_).size(), 1u);
  EXPECT_EQ(core_.admission.counts().hits(), 1);
  EXPECT_EQ(core_.admission.counts().prefetch_hits, 0);
}

TEST_F(AdmitTest, WhatWasFetchedAheadIsAHitOfThat) {
  core_.Fetch(a_);
  core_.admission.NoteAhead(a_);
  for (int i = 0; i < 2; ++i) {
    Push(customer_, {Read(a_)});
    Admit(customer_);
  }
  EXPECT_EQ(core_.admission.counts().prefetch_reads, 1);
  EXPECT_EQ(core_.admission.counts().prefetch_hits, 1);
  EXPECT_EQ(core_.admission.counts().hits(), 2);
}

TEST_F(AdmitTest, WhatFailedAheadIsTriedAgainOnceItWasAskedFor) {
  core_.admission.NoteAheadFailed(a_);
  EXPECT_TRUE(core_.admission.HasFailedAhead(a_));
  Push(customer_, {Read(a_)});
  Admit(customer_);
  EXPECT_FALSE(core_.admission.HasFailedAhead(a_));
}

TEST_F(AdmitTest, AWriterWaitsForReadersAndWhoBehindItIsWaitsToo) {
  core_.Fetch(a_);
  core_.Fetch(b_);
  Push(other_, {Read(a_)});
  Admit(other_);
  Push(customer_, {Update(a_)}, 1);
  Push(customer_, {Read(b_)}, 2);  // it could be had
  Admit(customer_);
  EXPECT_THAT(Take(customer_), IsEmpty());
  EXPECT_FALSE(customer_.blocked_by_own_pins);
  EXPECT_TRUE(core_.admission.WriterWaits(a_));
  EXPECT_FALSE(core_.admission.WriterWaits(b_));
  EndPins(Take(other_), PinEnd::kUnchanged);
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].tag, 1u);
  EXPECT_EQ(ready[1].tag, 2u);
}

TEST_F(AdmitTest, OwnPinsThatBlockAreTold) {
  core_.Fetch(a_);
  Push(customer_, {Read(a_)});
  Admit(customer_);
  Push(customer_, {Update(a_)});
  Admit(customer_);
  EXPECT_TRUE(customer_.blocked_by_own_pins);
  EndPins(Take(customer_), PinEnd::kUnchanged);
  Admit(customer_);
  EXPECT_FALSE(customer_.blocked_by_own_pins);
  EXPECT_EQ(Take(customer_).size(), 1u);
}

TEST_F(AdmitTest, AWriterMakesTheTransferOutGiveWayAndItsCauseIsThat) {
  core_.Fetch(a_);
  core_.Update(a_);
  core_.transfers.StartDrain(a_, kDisk0, {});
  core_.Hear();  // it moves
  Push(customer_, {Update(a_)});
  Admit(customer_);
  EXPECT_THAT(Take(customer_), IsEmpty());
  core_.machine.clock.JumpTo(core_.machine.clock.Now() + absl::Seconds(0.1));
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(arrivals[0].status));
  Hear(arrivals);
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cause, WaitCause::kWriteBack);
}

TEST_F(AdmitTest, WhatCanNeverBeHadIsSaidAtOnce) {
  Tensor& fresh = core_.Add("fresh");
  b_.Lose(absl::DataLossError("torn"));
  Push(customer_, {Read(fresh)});
  Push(customer_, {Update(b_)});
  Push(customer_, {{TensorId{99}, Access::kRead}});
  Push(customer_, {Overwrite(fresh)});  // this can
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 4u);
  EXPECT_EQ(ready[0].grants.status(),
            absl::FailedPreconditionError("tensor 'fresh' was never written"));
  EXPECT_EQ(ready[1].grants.status(), absl::DataLossError("torn"));
  EXPECT_EQ(ready[2].grants.status(),
            absl::InvalidArgumentError("no tensor 99"));
  EXPECT_TRUE(ready[3].grants.ok());
  ASSERT_EQ(errors_.size(), 1u);  // a step hears of the loss
  EXPECT_EQ(errors_[0].queue, customer_.id);
  EXPECT_EQ(errors_[0].status, absl::DataLossError("torn"));
}

TEST_F(AdmitTest, WhatALateWriteMayStillReadIsReadAndNotWritten) {
  core_.machine.faults->FailCall(1, {.kind = FaultKind::kNever},
                                 CallFilter::kWrites);
  core_.Fetch(b_);
  core_.Update(b_);
  core_.transfers.StartDrain(b_, kDisk0, {});
  Hear(core_.SettleFor(absl::Seconds(3)));
  Push(customer_, {Update(b_)});
  Push(customer_, {Read(b_)});
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 2u);
  const absl::Status& refused = ready[0].grants.status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(refused.message(),
            "tensor 'b': a write to disk0/state, offset 8192, 8192 bytes, is "
            "past its deadline and still under way");
  EXPECT_EQ(IoFaultOf(refused).offset, 8192);
  EXPECT_TRUE(ready[1].grants.ok());
}

TEST_F(AdmitTest, AFetchThatFailsFailsItsGroupOnceTheOthersHaveEnded) {
  Push(customer_, {Read(a_), Update(b_)}, 5);
  Admit(customer_);
  core_.machine.faults->FailCall(
      1, {.kind = FaultKind::kError, .error = ENODEV}, CallFilter::kReads);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 2u);
  ASSERT_EQ(arrivals[0].kind, Arrival::Kind::kFillFailed);
  Hear(arrivals[0]);
  EXPECT_THAT(Take(customer_), IsEmpty());
  Hear(arrivals[1]);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].tag, 5u);
  EXPECT_EQ(IoFaultOf(ready[0].grants.status()).error, ENODEV);
  EXPECT_FALSE(a_.Pinned(kDramTier));
  EXPECT_FALSE(b_.Pinned(kDramTier));
  EXPECT_TRUE(b_.Idle(kDramTier));
  EXPECT_EQ(customer_.held_pins, 0);
  EXPECT_EQ(customer_.admitted, 0);
}

TEST_F(AdmitTest, WhatAClosedQueueFetchedIsLetGoOf) {
  Push(customer_, {Read(a_), Overwrite(b_)});
  Admit(customer_);
  core_.customers.Close(customer_);
  core_.admission.OnClosed(customer_);
  EXPECT_FALSE(core_.customers.wanted().Contains(a_.id));
  Hear(core_.Settle());
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ready[0].grants.status()));
  EXPECT_TRUE(a_.Idle(kDramTier));
  EXPECT_EQ(b_.at(kDramTier), nullptr);  // undefined; below is the truth
  EXPECT_TRUE(b_.Fetchable());
}

TEST_F(AdmitTest, OnceItRefusesNothingIsReadyAnyMore) {
  Push(customer_, {Read(a_)});
  Admit(customer_);
  core_.admission.Refuse();
  Hear(core_.Settle());
  EXPECT_TRUE(absl::IsCancelled(Take(customer_).at(0).grants.status()));
}

TEST_F(AdmitTest, WhatIsWantedIsCountedWhileItIsFetched) {
  Push(customer_, {Read(a_)});
  Push(other_, {Read(b_)});
  Admit(customer_);
  Admit(other_);
  WantedTensors wanted;
  core_.admission.AddWanted(&wanted);
  EXPECT_EQ(wanted, core_.customers.wanted());
  EXPECT_TRUE(wanted.Contains(b_.id));
  Hear(core_.Settle());
  EXPECT_EQ(core_.customers.wanted(), WantedTensors());
}

// Room for one tensor beside a window of two slots.
class NarrowAdmitTest : public AdmissionTest {
 protected:
  NarrowAdmitTest() : AdmissionTest({.budget_bytes = 6 * kPage}) {}
};

TEST_F(NarrowAdmitTest, RoomThatWasFoundForAGroupThatWaitsIsGivenBack) {
  Tensor& a = AddResting("a");
  Tensor& b = AddResting("b");
  Tensor& c = AddResting("c");
  Tensor& d = AddResting("d");
  Customer& customer = core_.Open(kPage, 2);
  core_.residency.windows().HoldRoom(true);  // the first two have slots
  Push(customer, {Overwrite(a), Overwrite(b)});
  Admit(customer);
  core_.residency.windows().HoldRoom(false);
  Push(customer, {Read(c), Read(d)});
  Admit(customer);
  EXPECT_TRUE(customer.blocked_by_own_pins);
  EXPECT_FALSE(core_.residency.residents().Has(c));
  EXPECT_EQ(core_.residency.residents().size_bytes(), 0);
  EXPECT_EQ(core_.dram.usage().used_bytes, 4 * kPage);
  EXPECT_EQ(core_.admission.counts().demand_reads, 0);
}

// Memory for one window of two slots, and nothing beside it.
class FullAdmitTest : public AdmissionTest {
 protected:
  FullAdmitTest() : AdmissionTest({.budget_bytes = 4 * kPage}) {}

  Tensor& a_ = AddResting("a");
  Tensor& b_ = AddResting("b");
  Tensor& c_ = AddResting("c");
  Customer& customer_ = core_.Open(kPage, 2);
};

TEST_F(FullAdmitTest, AGroupThatWaitsHoldsNothing) {
  Push(customer_, {Overwrite(a_)});
  Admit(customer_);
  std::vector<ReadyGroup> first = Take(customer_);
  Push(customer_, {Read(b_), Read(c_)});
  Admit(customer_);
  EXPECT_TRUE(customer_.blocked_by_own_pins);
  EXPECT_EQ(b_.at(kDramTier), nullptr);
  EXPECT_FALSE(customer_.window->taken(1));
  EXPECT_EQ(core_.admission.counts().demand_reads, 0);
  EndPins(std::move(first), PinEnd::kUnchanged);
  core_.residency.Drop(a_);
  Admit(customer_);
  Hear(core_.Settle());
  EXPECT_EQ(Take(customer_).size(), 1u);
}

TEST_F(FullAdmitTest, WhoWaitedForRoomSaysSo) {
  Push(customer_, {Overwrite(a_), Overwrite(b_)});
  Admit(customer_);
  Push(customer_, {Overwrite(c_)});
  Admit(customer_);
  core_.machine.clock.JumpTo(core_.machine.clock.Now() + absl::Seconds(1));
  EndPins(Take(customer_), PinEnd::kUnchanged);
  core_.residency.Drop(a_);
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].cause, WaitCause::kSpace);
}

TEST_F(FullAdmitTest, PastItsDeadlineAGroupEndsWhereverItStands) {
  const absl::Time now = core_.machine.clock.Now();
  Push(customer_, {Overwrite(a_), Overwrite(b_)});
  Admit(customer_);
  Push(customer_, {Read(c_)}, 1, now + absl::Seconds(9));
  Push(customer_, {Read(c_)}, 2, now + absl::Seconds(2));
  Take(customer_).clear();
  EXPECT_FALSE(core_.admission.HasExpired(customer_, now));
  const absl::Time later = now + absl::Seconds(2);
  EXPECT_TRUE(core_.admission.HasExpired(customer_, later));
  core_.admission.Expire(customer_, later, "1 queues");
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].grants.status(),
            absl::ResourceExhaustedError(
                "group 2 was not admitted in time; held: 1 queues"));
  EXPECT_EQ(customer_.waiting.size(), 1u);
}

TEST_F(FullAdmitTest, ASlotThatCannotBeHadFailsTheGroup) {
  for (Tensor* const tensor : {&a_, &b_}) {
    Push(customer_, {Overwrite(*tensor)});
    Admit(customer_);
    EndPins(Take(customer_), PinEnd::kPublish);
    tensor->refusals.GiveUp(absl::UnavailableError("EIO"));
  }
  Push(customer_, {Read(c_)});
  Admit(customer_);
  const std::vector<ReadyGroup> ready = Take(customer_);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].grants.status(), absl::UnavailableError("EIO"));
}

}  // namespace
}  // namespace terrace
