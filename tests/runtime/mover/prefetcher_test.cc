#include "runtime/mover/prefetcher.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/mover/admission_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PrefetcherTest : public AdmissionTest {
 protected:
  PrefetcherTest() {
    for (Tensor* const tensor : {&a_, &b_, &c_}) {
      core_.planner.OnAccess(customer_.id, tensor->id);
    }
    core_.planner.BeginStep(customer_.id);
    core_.transcript.clear();
  }

  Prefetcher Make(bool enabled = true) {
    return Prefetcher({.table = &core_.table,
                       .planner = &core_.planner,
                       .working = &core_.working,
                       .transfers = &core_.transfers,
                       .admission = &core_.admission,
                       .enabled = enabled});
  }
  // Of a queue that has just been used.
  void Propose(Prefetcher& prefetcher, const Customer& customer) {
    prefetcher.Watch(customer.id);
    prefetcher.Propose(core_.customers);
  }
  void Propose() {
    Prefetcher prefetcher = Make();
    Propose(prefetcher, customer_);
  }
  void Hint(absl::Span<const TensorId> tensors) {
    Prefetcher prefetcher = Make();
    prefetcher.Hint(tensors);
    prefetcher.ServeHints();
  }
  // The tensors whose fetches were begun.
  std::vector<int64_t> Begun() const {
    std::vector<int64_t> ids;
    for (const TranscriptLine& line : core_.transcript) {
      EXPECT_EQ(line.io_class, static_cast<int>(IoClass::kPrefetch));
      if (line.event == TranscriptEvent::kMoveStarted) {
        ids.push_back(line.tensor);
      }
    }
    return ids;
  }

  Tensor& a_ = AddResting("a");  // 0
  Tensor& b_ = AddResting("b");  // 1
  Tensor& c_ = AddResting("c");  // 2
  Customer& customer_ = core_.Open(kPage, 2);
};

TEST_F(PrefetcherTest, WhatComesNextIsFetchedIntoFreeSlots) {
  Propose();
  EXPECT_THAT(Begun(), ElementsAre(0, 1));  // there are two
  EXPECT_EQ(core_.residency.WindowOf(a_), customer_.window);
  EXPECT_EQ(a_.customer, customer_.id);
  EXPECT_EQ(core_.admission.counts().prefetch_reads, 2);
  core_.Settle();
  Propose();  // what is there is needed sooner
  EXPECT_THAT(Begun(), ElementsAre(0, 1));
}

TEST_F(PrefetcherTest, WhatIsNeededLaterGivesWay) {
  Propose();
  core_.Settle();
  core_.planner.OnAccess(customer_.id, a_.id);  // next use: b, c, then a
  Propose();
  EXPECT_THAT(Begun(), ElementsAre(0, 1, 2));
  EXPECT_EQ(a_.at(kDramTier), nullptr);
}

TEST_F(PrefetcherTest, AWaitingGroupComesFirst) {
  Push(customer_, {Read(c_)});
  Propose();
  EXPECT_THAT(Begun(), IsEmpty());
}

TEST_F(PrefetcherTest, SwitchedOffItFetchesNothing) {
  Prefetcher off = Make(/*enabled=*/false);
  Propose(off, customer_);
  EXPECT_THAT(Begun(), IsEmpty());
}

TEST_F(PrefetcherTest, WithoutATraceItFetchesNothing) {
  core_.planner.Forget(customer_.id);
  Propose();
  EXPECT_THAT(Begun(), IsEmpty());
}

TEST_F(PrefetcherTest, WhatCannotBeFetchedIsPassedOver) {
  core_.admission.NoteAheadFailed(a_);
  b_.Lose(absl::DataLossError("torn"));
  Propose();
  EXPECT_THAT(Begun(), ElementsAre(2));
}

// A state's share of memory comes first in every step, and is larger than the
// window.
TEST_F(PrefetcherTest, WhatStaysInMemoryIsPassedOver) {
  core_.planner.Forget(customer_.id);
  for (const char* const name : {"d", "e", "f", "g", "h"}) {
    Tensor& tensor = AddResting(name);
    core_.Fetch(tensor);
    core_.planner.OnAccess(customer_.id, tensor.id, /*stays=*/true);
  }
  core_.planner.OnAccess(customer_.id, b_.id);
  core_.planner.BeginStep(customer_.id);
  core_.transcript.clear();
  Propose();
  EXPECT_THAT(Begun(), ElementsAre(1));
}

TEST_F(PrefetcherTest, AWindowWithoutSlotsFetchesNothing) {
  Customer& bare = core_.customers.Open(*core_.residency.windows().Open(
      core_.residency.FindRange(kPage), kPage, 0));
  core_.planner.Open(bare.id);
  core_.planner.OnAccess(bare.id, a_.id);
  core_.planner.BeginStep(bare.id);
  Prefetcher prefetcher = Make();
  Propose(prefetcher, bare);
  EXPECT_THAT(Begun(), IsEmpty());
}

TEST_F(PrefetcherTest, WhatIsGoneOrTooLargeForASlotIsPassedOver) {
  Tensor& large = core_.Add("large", 2 * kPage);
  core_.Rest(large);
  core_.transcript.clear();
  core_.planner.Forget(customer_.id);
  for (Tensor* const tensor : {&a_, &large, &b_}) {
    core_.planner.OnAccess(customer_.id, tensor->id);
  }
  core_.planner.BeginStep(customer_.id);
  core_.table.Retire(a_);
  Propose();
  EXPECT_THAT(Begun(), ElementsAre(1));
}

TEST_F(PrefetcherTest, AQueueIsLookedAtUntilNothingIsInItsWay) {
  Prefetcher prefetcher = Make();
  Propose(prefetcher, customer_);
  EXPECT_THAT(Begun(), ElementsAre(0, 1));
  EXPECT_EQ(prefetcher.watched(), 1);  // both slots are being filled
  core_.Settle();
  prefetcher.Propose(core_.customers);
  EXPECT_EQ(prefetcher.watched(), 0);  // both have what is needed sooner
  // A pin of its own keeps a slot, and ends.
  core_.planner.OnAccess(customer_.id, a_.id);
  Push(customer_, {Read(a_)});
  Admit(customer_);
  core_.transcript.clear();
  Propose(prefetcher, customer_);
  EXPECT_THAT(Begun(), IsEmpty());
  EXPECT_EQ(prefetcher.watched(), 1);
  EndPins(Take(customer_), PinEnd::kUnchanged);
  core_.transcript.clear();
  prefetcher.Propose(core_.customers);
  EXPECT_THAT(Begun(), ElementsAre(2));
}

TEST_F(PrefetcherTest, ALossIsNotedForTheQueueThatAskedLast) {
  Prefetcher prefetcher = Make();
  Propose(prefetcher, customer_);
  core_.Settle();
  prefetcher.Propose(core_.customers);
  core_.Settle();
  core_.residency.windows().TakeLosers();
  core_.residency.Drop(a_);
  EXPECT_THAT(core_.residency.windows().TakeLosers(),
              ElementsAre(customer_.id));
  EXPECT_THAT(core_.residency.windows().TakeLosers(), IsEmpty());
}

TEST_F(PrefetcherTest, AClosedQueueIsNotLookedAt) {
  Prefetcher prefetcher = Make();
  prefetcher.Watch(customer_.id);
  core_.customers.Close(customer_);
  prefetcher.Propose(core_.customers);
  EXPECT_THAT(Begun(), IsEmpty());
  EXPECT_EQ(prefetcher.watched(), 0);
}

TEST_F(PrefetcherTest, AHintGoesOutsideTheWindows) {
  const TensorId hint[] = {TensorId{99}, c_.id, a_.id};
  Hint(hint);
  EXPECT_THAT(Begun(), ElementsAre(2, 0));
  EXPECT_EQ(core_.residency.WindowOf(c_), nullptr);
  EXPECT_TRUE(core_.residency.residents().Has(c_));
  EXPECT_EQ(core_.admission.counts().prefetch_reads, 2);
}

TEST_F(PrefetcherTest, AHintDisplacesNobody) {
  core_.Fetch(a_);
  core_.transcript.clear();
  core_.residency.windows().HoldRoom(true);
  const TensorId hint[] = {a_.id, b_.id};
  Hint(hint);
  EXPECT_THAT(Begun(), IsEmpty());
  EXPECT_NE(a_.at(kDramTier), nullptr);
}

}  // namespace
}  // namespace terrace
