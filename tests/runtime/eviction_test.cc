// What leaves memory because the runtime's owner asks for it, against plain
// numbers: what each tensor was last written with.
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/runtime/owner_questions.h"

namespace terrace {
namespace {

class EvictionTest : public OwnerQuestions {
 protected:
  std::unique_ptr<Asked> Ask(absl::Duration patience, uint64_t ticket = 7) {
    return Post(EvictRequest{{}, ticket, world().Now() + patience});
  }
  Evicted Evict(absl::Duration patience = absl::Seconds(20)) {
    auto evicted = Ask(patience)->question.Await<Evicted>(ClockOf(runtime()));
    EXPECT_TRUE(evicted.ok()) << evicted.status();
    return evicted.value_or(Evicted());
  }
  // Of the first memory, that tensors have.
  int64_t InMemory() {
    const TierStats memory = stats().tiers.front();
    return memory.pinned_bytes + memory.dirty_bytes + memory.clean_bytes;
  }
  static int64_t TensorsThatStay(const Evicted& evicted) {
    return evicted.pinned.tensors + evicted.moving.tensors +
           evicted.wanted.tensors + evicted.in_windows.tensors +
           evicted.unwritten.tensors;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, EvictionTest,
                         testing::Values(TestWorld::kVirtual,
                                         TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kHbmVirtual,
                                         TestWorld::kNodesVirtual),
                         WorldParamName);

TEST_P(EvictionTest, WhatNobodyHasPinnedGoesDownAndIsReadAgain) {
  Make(40);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = world().RegisterMany(20, kPage);
  for (uint8_t i = 0; i < 20; ++i) world().Fill(*queue, tensors[i], i);
  EXPECT_EQ(InMemory(), 20 * kPlace);
  const Evicted evicted = Evict();
  EXPECT_EQ(evicted.ticket, 7u);
  EXPECT_EQ(evicted.gone.tensors, 20);
  EXPECT_EQ(evicted.gone.bytes, 20 * kPlace);
  EXPECT_EQ(TensorsThatStay(evicted), 0);
  EXPECT_EQ(InMemory(), 0);
  EXPECT_EQ(stats().bytes_written(), 20 * kPlace);
  EXPECT_EQ(stats().bytes_read(), 0);
  for (uint8_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i)) << i;
  }
  EXPECT_EQ(stats().bytes_read(), 20 * kPlace);
  // What is clean goes without a write.
  EXPECT_EQ(Evict().gone.tensors, 20);
  EXPECT_EQ(stats().bytes_written(), 20 * kPlace);
  EXPECT_EQ(Evict().gone.tensors, 0);
}

TEST_P(EvictionTest, PinsAreNotTouched) {
  Make(10);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  for (uint8_t i = 0; i < 3; ++i) world().Fill(*queue, tensors[i], i);
  auto read = world().Take(*queue, tensors[0], Access::kRead);
  auto written = world().Take(*queue, tensors[1], Access::kUpdate);
  ASSERT_TRUE(read.ok() && written.ok());
  const Evicted evicted = Evict();
  EXPECT_EQ(evicted.pinned.tensors, 2);
  EXPECT_EQ(evicted.pinned.bytes, 2 * kPlace);
  EXPECT_EQ(evicted.gone.tensors, 1);
  EXPECT_TRUE(HasPattern(read->data(), 0));
  EXPECT_TRUE(HasPattern(written->data(), 1));
  WritePattern(written->data(), 9);
  read->Release();
  written->Release();
  EXPECT_TRUE(world().Holds(*queue, tensors[1], 9));
  EXPECT_TRUE(world().Holds(*queue, tensors[2], 2));
  EXPECT_EQ(Evict().gone.tensors, 3);
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_TRUE(world().Holds(*queue, tensors[1], 9));
}

TEST_P(EvictionTest, WhatAWindowHasStays) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);  // all of the memory
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  const Evicted evicted = Evict();
  EXPECT_EQ(evicted.gone.tensors, 0);
  EXPECT_GE(evicted.in_windows.tensors, 1);
  const int64_t before = stats().bytes_read();
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_EQ(stats().bytes_read(), before);
}

TEST_P(EvictionTest, WhatAGroupWaitsForStays) {
  Make(12);
  auto queue = world().OpenQueue(kPage, 1);
  const std::vector<TensorId> tensors = world().RegisterMany(2, kPage);
  for (uint8_t i = 0; i < 2; ++i) world().Fill(*queue, tensors[i], i);
  auto held = world().Take(*queue, tensors[0], Access::kRead);
  ASSERT_TRUE(held.ok()) << held.status();
  // It waits for the reader.
  auto other = world().OpenQueue(kPage, 2);
  ASSERT_TRUE(
      other
          ->Push({{tensors[0], Access::kUpdate}, {tensors[1], Access::kRead}},
                 1, Soon())
          .ok());
  stats();
  const Evicted evicted = Evict();
  EXPECT_EQ(evicted.gone.tensors, 0);
  EXPECT_EQ(evicted.pinned.tensors, 1);
  EXPECT_EQ(evicted.wanted.tensors, 1);
  held->Release();
  auto ready = other->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok()) << ready->pins.status();
  EXPECT_TRUE(HasPattern((*ready->pins)[0].data(), 0));
  EXPECT_TRUE(HasPattern((*ready->pins)[1].data(), 1));
  EXPECT_EQ(stats().bytes_read(), 0);
}

TEST_P(EvictionTest, WhatCannotBeWrittenStaysAndIsToldSo) {
  Make(10);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  for (uint8_t i = 0; i < 3; ++i) world().Fill(*queue, tensors[i], i);
  world().faults().FailAll(kGone, CallFilter::kWrites);
  const Evicted evicted = Evict();
  EXPECT_EQ(evicted.gone.tensors, 0);
  EXPECT_EQ(evicted.unwritten.tensors, 3);
  for (uint8_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i)) << i;
  }
  EXPECT_EQ(Evict().unwritten.tensors, 3);  // and it does not wait for it
  Mend();
  ASSERT_TRUE(queue->BeginStep(1).ok() && queue->AbortStep().ok());
  EXPECT_EQ(Evict().gone.tensors, 3);
  for (uint8_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i)) << i;
  }
}

TEST_P(EvictionTest, AtTheDeadlineWhatIsNotWrittenIsOnItsWay) {
  Make(200);
  auto queue = world().OpenQueue(kPage, 2);
  // More than are written at a time.
  const std::vector<TensorId> tensors = world().RegisterMany(100, kPage);
  for (uint8_t i = 0; i < 100; ++i) world().Fill(*queue, tensors[i], i);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  const absl::Time begin = world().Now();
  const Evicted evicted = Evict(absl::Milliseconds(50));
  EXPECT_GE(world().Now() - begin, absl::Milliseconds(50));
  EXPECT_EQ(evicted.moving.tensors, 100);
  EXPECT_EQ(evicted.gone.tensors, 0);
  Mend();
  for (uint8_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i)) << int{i};
  }
  const int64_t before = InMemory();
  EXPECT_EQ(Evict().gone.bytes, before);
  EXPECT_EQ(InMemory(), 0);
}

TEST_P(EvictionTest, AnotherOneTakesItsPlace) {
  Make(10);
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId tensor = world().Register("a", kPage);
  world().Fill(*queue, tensor, 1);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  auto first = Ask(absl::Hours(1), 1);
  auto second = Ask(absl::Milliseconds(50), 2);
  Clock& clock = ClockOf(runtime());
  const auto told = first->question.Await<Evicted>(clock);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->ticket, 1u);
  EXPECT_EQ(told->gone.tensors, 0);
  const auto later = second->question.Await<Evicted>(clock);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->ticket, 2u);
  EXPECT_EQ(later->moving.tensors, 1);
  Mend();
  EXPECT_TRUE(world().Holds(*queue, tensor, 1));
}

TEST_P(EvictionTest, ACloseEndsIt) {
  Make(10);
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId tensor = world().Register("a", kPage);
  world().Fill(*queue, tensor, 1);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  auto asked = Ask(absl::Hours(1));
  stats();
  queue.reset();
  auto closed = Post(CloseRequest{{}, world().Now() + absl::Milliseconds(100)});
  Clock& clock = ClockOf(runtime());
  const auto told = asked->question.Await<Evicted>(clock);
  EXPECT_TRUE(absl::IsCancelled(told.status())) << told.status();
  world().faults().Clear();
  closed->question.AwaitStatus(clock).IgnoreError();
}

// A customer that goes on meanwhile, by slots and by bytes.
TEST_P(EvictionTest, WhateverIsUsedMeanwhileItHasItsBytes) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::minstd_rand random(seed);
    const Draw draw = DrawsOf(random);
    Make(12 + draw(20));
    UseMeanwhile<Evicted>(draw, 24, 200, [&]() -> std::unique_ptr<Asked> {
      if (draw(5) != 0) return nullptr;
      return Ask(absl::Milliseconds(draw(3)));
    });
  }
}

}  // namespace
}  // namespace terrace
