// terrace/byte_queue.h, in every world.
#include "terrace/byte_queue.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/bytes/byte_contract_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Worlds, ByteQueueContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(ByteQueueContract, TensorsOfAnySizesTakeNoMoreThanTheyAre) {
  Open(7);
  std::vector<Pin> pins;
  for (int pages = 1; pages <= 4; ++pages) {  // and a header's page each
    pins.push_back(
        Have(world().Register("of " + std::to_string(pages) + " pages",
                              pages * kPage),
             Access::kOverwrite));
    WritePattern(pins.back().data(), static_cast<uint8_t>(pages));
  }
  EXPECT_EQ(stats().host.used_bytes, 7 * kPlace);
  EXPECT_EQ(stats().window_bytes, 0);
  EXPECT_EQ(stats().bytes.promised_bytes, 7 * kPlace);
  for (int pages = 1; pages <= 4; ++pages) {
    EXPECT_TRUE(HasPattern(pins[static_cast<size_t>(pages - 1)].data(),
                           static_cast<uint8_t>(pages)));
  }
}

TEST_P(ByteQueueContract, AGroupHasAPinForEachWantInOrder) {
  Open(4);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", 100, 2);
  std::vector<Pin> pins = Take(Push({{b}, {a, Access::kUpdate}}));
  ASSERT_EQ(pins.size(), 2u);
  EXPECT_EQ(pins[0].tensor(), b);
  EXPECT_TRUE(HasPattern(pins[0].data(), 2));
  EXPECT_TRUE(HasPattern(pins[1].data(), 1));
  EXPECT_TRUE(absl::IsInvalidArgument(queue_->Await(99, Soon()).status()));
}

TEST_P(ByteQueueContract, AnEndedPinGivesUpThePinAndNotTheBytes) {
  Open(4);
  const TensorId a = Written("a", kPage, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(HasPattern(Have(a, Access::kRead).data(), 1));
  }
  // What can be had is had at its deadline too.
  EXPECT_EQ(Take(PushBy({{a}}, world().Now())).size(), 1u);
  EXPECT_EQ(stats().demand_reads, 0);
  EXPECT_EQ(stats().host.used_bytes, kPlace);
}

TEST_P(ByteQueueContract, AReaderThatWaitsHoldsUpNoOtherReader) {
  Open(4);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  Pin writes = Have(b, Access::kUpdate);
  const uint64_t waits = Push({{a}, {b}});
  ASSERT_THAT(Await(waits).recalls, ElementsAre(writes.token()));
  queue_->Keep(writes.token());
  const uint64_t writer = Push({{a, Access::kUpdate}});
  EXPECT_TRUE(Waits(writer));  // behind the reader
  EXPECT_TRUE(Waits(waits));
  writes.ReleaseUnchanged();
  EXPECT_EQ(Take(waits).size(), 2u);
  EXPECT_EQ(Take(writer).size(), 1u);
  writes = Have(b, Access::kUpdate);
  const uint64_t again = Push({{a}, {b}});
  ASSERT_THAT(Await(again).recalls, ElementsAre(writes.token()));
  queue_->Keep(writes.token());
  EXPECT_TRUE(HasPattern(Have(a, Access::kRead).data(), 1));
  EXPECT_TRUE(Waits(again));
  writes.ReleaseUnchanged();
  EXPECT_EQ(Take(again).size(), 2u);
}

TEST_P(ByteQueueContract, WhereAllThatHoldPinsWaitTheOldestGoesBeyond) {
  Open(2);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  const TensorId c = Written("c", kPage, 3);
  std::vector<Pin> pins = Take(Push({{a}, {b}}));
  Awaited news =
      Await(Push({{c, Access::kUpdate}}, {pins[0].token(), pins[1].token()}));
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  Pin beyond = std::move((*news.pins)->front());
  EXPECT_EQ(news.beyond_bytes, kPlace);
  EXPECT_THAT(news.recalls, ElementsAre(beyond.token()));
  queue_->Keep(beyond.token());
  EXPECT_TRUE(HasPattern(beyond.data(), 3));
  WritePattern(beyond.data(), 4);
  Stats now = stats();
  EXPECT_EQ(now.bytes.groups_beyond, 1);
  EXPECT_EQ(now.bytes.beyond_bytes, kPlace);
  EXPECT_LE(now.host.used_bytes, 2 * kPlace);
  beyond.Release();
  pins.clear();
  EXPECT_TRUE(HasPattern(Have(c, Access::kRead).data(), 4));
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().bytes.beyond_bytes == 0; }));
  EXPECT_EQ(stats().bytes.beyond_peak_bytes, kPlace);
}

// Both come in one turn, and whoever has the other answer says nothing more.
TEST_P(ByteQueueContract, WhatIsServedBesideItDoesNotHideThatAGroupIsStuck) {
  Open(2);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  const TensorId c = Written("c", kPage, 3);
  std::vector<Pin> pins = Take(Push({{a}, {b}}));
  const uint64_t stuck = Push({{c}}, {pins[0].token(), pins[1].token()});
  const uint64_t here = Push({{a}});
  Awaited news = Await(stuck);
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ(news.beyond_bytes, kPlace);
  EXPECT_TRUE(HasPattern((*news.pins)->front().data(), 3));
  EXPECT_TRUE(HasPattern(Take(here).front().data(), 1));
}

TEST_P(ByteQueueContract, WhoWaitsForAnothersRequestIsNotWaitedFor) {
  Open(2);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  const TensorId c = Written("c", kPage, 3);
  std::vector<Pin> pins = Take(Push({{a}, {b}}));
  const uint64_t request = Push({{c}}, {pins[0].token()});
  ASSERT_THAT(Await(request).recalls, ElementsAre(pins[1].token()));
  queue_->Keep(pins[1].token());
  EXPECT_TRUE(Waits(request));  // its holder may compute
  EXPECT_TRUE(queue_->BeginWaiting({pins[1].token()}).ok());
  Awaited news = Await(request);
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ(news.beyond_bytes, kPlace);
}

TEST_P(ByteQueueContract, WhatWaitsForSomethingElseIsNotWaitedForMeanwhile) {
  Open(2);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  const TensorId c = Written("c", kPage, 3);
  const TensorId d = Written("d", kPage, 4);
  std::vector<Pin> pins = Take(Push({{a}, {b}}));
  const std::vector<uint64_t> tokens = {pins[0].token(), pins[1].token()};
  ASSERT_TRUE(queue_->BeginWaiting(tokens).ok());
  ASSERT_TRUE(queue_->BeginWaiting({tokens[0]}).ok());
  std::vector<Pin> beyond;
  {
    Awaited news = Await(Push({{c}}));
    ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
    EXPECT_EQ(news.beyond_bytes, kPlace);
  }
  queue_->EndWaiting(tokens);  // the first one's user waits still
  const uint64_t request = Push({{d}});
  ASSERT_THAT(Await(request).recalls, ElementsAre(tokens[1]));
  EXPECT_TRUE(Waits(request));
  pins[1].Release();
  EXPECT_EQ(Await(request).beyond_bytes, 0);
}

TEST_P(ByteQueueContract, WhatIsLargerThanTheBudgetGoesBeyond) {
  Open(2);
  const TensorId large = Written("large", 9 * kPage, 5);
  Awaited news = Await(Push({{large}}));
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ(news.beyond_bytes, 10 * kPage);
  EXPECT_TRUE(HasPattern((*news.pins)->front().data(), 5));
}

// The tensor in use lies in the middle, and another has an idle pin: the one
// that is asked for fits on neither side, whether the idle one leaves or not.
TEST_P(ByteQueueContract, WhatFitsInNoPartBesideWhatWaitsGoesBeyond) {
  const auto size_of = [](int places) { return places * kPlace - kPage; };
  Open(10);
  const TensorId left = Written("left", size_of(4), 1);
  const TensorId middle = Written("middle", size_of(2), 2);
  const TensorId right = Written("right", size_of(4), 3);
  const Pin in_use = Have(middle, Access::kRead);
  ASSERT_TRUE(runtime().Unregister(left).ok());
  ASSERT_TRUE(runtime().Unregister(right).ok());
  const TensorId small = world().Register("small", kPage);
  const Pin idle = Have(small, Access::kOverwrite);
  const TensorId large = world().Register("large", size_of(5));
  const uint64_t request =
      Push({{large, Access::kOverwrite}}, {in_use.token()});
  Awaited news = Await(request);
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ(news.beyond_bytes, 5 * kPlace);
  EXPECT_EQ(stats().bytes.groups_beyond, 1);
}

// Two customers with half of the budget each.
class ByteQueuesContract : public ByteQueueContract {
 protected:
  void SetUp() override {
    ByteQueueContract::SetUp();
    if (IsSkipped()) return;
    Make(8);
    queue_ = OpenMore(4);
    other_ = OpenMore(4);
    a_ = Written("a", kPage, 1);
  }

  std::unique_ptr<ByteQueue> other_;
  TensorId a_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, ByteQueuesContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(ByteQueuesContract, AnotherCustomersAccessRecallsThePin) {
  const Want want{a_, Access::kUpdate};
  const auto request = other_->Push({&want, 1}, {}, Soon());
  ASSERT_TRUE(request.ok());
  auto news = other_->Await(*request, Soon());
  ASSERT_TRUE(news.ok() && news->pins.has_value() && news->pins->ok());
  Pin pin = std::move((*news->pins)->front());
  const uint64_t reads = Push({{a_}});
  ASSERT_THAT(AwaitRecalls(*other_), ElementsAre(pin.token()));
  WritePattern(pin.data(), 7);
  pin.Release();
  EXPECT_TRUE(HasPattern(Take(reads).front().data(), 7));
}

TEST_P(ByteQueuesContract, AQueueWithSlotsHasPinsRecalledToo) {
  Pin pin = Have(a_, Access::kRead);
  auto slots = runtime().OpenQueue(kPage, 1, Soon());
  // The windows of both have promised all of the budget away.
  EXPECT_TRUE(absl::IsResourceExhausted(slots.status()));
  EXPECT_THAT(Message(slots.status()), HasSubstr("the least budget for it"));
  other_.reset();
  slots = runtime().OpenQueue(kPage, 1, Soon());
  ASSERT_TRUE(slots.ok()) << slots.status();
  const Want want{a_, Access::kUpdate};
  ASSERT_TRUE((*slots)->Push({&want, 1}, 0, Soon()).ok());
  EXPECT_THAT(AwaitRecalls(*queue_), ElementsAre(pin.token()));
  pin.ReleaseUnchanged();
  const auto ready = (*slots)->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_TRUE(ready->pins.ok()) << ready->pins.status();
}

TEST_P(ByteQueuesContract, WindowsTogetherAreWithinTheBudget) {
  const auto refused = runtime().OpenBytes(1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(Message(refused.status()),
              HasSubstr("a window of 1 bytes: other windows take"));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime().OpenBytes(0).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(runtime().OpenBytes(1, "dram:node7").status()));
  other_.reset();
  EXPECT_TRUE(runtime().OpenBytes(kPlace, "dram").ok());
}

TEST_P(ByteQueuesContract, PinsOutliveTheirQueueAndAClose) {
  Pin pin = Have(a_, Access::kRead);
  const uint64_t request = Push({{a_}});
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime().Close(Soon())));
  EXPECT_TRUE(absl::IsCancelled(queue_->Await(request, Soon()).status()));
  EXPECT_TRUE(absl::IsCancelled(queue_->Push({}, {}, Soon()).status()));
  EXPECT_TRUE(absl::IsCancelled(queue_->AwaitRecalls(Soon()).status()));
  EXPECT_TRUE(absl::IsCancelled(queue_->BeginStep(1)));
  queue_.reset();
  other_.reset();
  EXPECT_TRUE(HasPattern(pin.data(), 1));
  pin.ReleaseUnchanged();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

TEST_P(ByteQueuesContract, StepsAndUsesTellWhatLeaves) {
  const TensorId b = Written("b", kPage, 2);
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(queue_->BeginStep(step).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(queue_->BeginStep(step)));
    Pin pin = Have(a_, Access::kRead);
    queue_->Touch({b, a_, b});
    EXPECT_TRUE(queue_->CommitStep({step}).ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->AbortStep()));
}

class ByteQueuesInAChild : public ByteQueuesContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, ByteQueuesInAChild,
                         testing::Values(TestWorld::kMemory, TestWorld::kUring),
                         WorldParamName);

TEST_P(ByteQueuesInAChild, EveryCallIsCancelledAtOnce) {
  Pin pin = Have(a_, Access::kRead);
  const uint64_t request = Push({{a_}});
  EXPECT_TRUE(InChild([&] {
    queue_->Keep(pin.token());
    queue_->Touch({a_});
    queue_->WakeRecalls();
    pin.Release();
    const bool cancelled =
        absl::IsCancelled(queue_->Push({}, {}, Soon()).status()) &&
        absl::IsCancelled(queue_->Await(request, Soon()).status()) &&
        absl::IsCancelled(queue_->BeginWaiting({})) &&
        absl::IsCancelled(queue_->HoldAtMost(1)) &&
        absl::IsCancelled(queue_->AwaitRecalls(Soon()).status()) &&
        absl::IsCancelled(queue_->BeginStep(1)) &&
        absl::IsCancelled(runtime().OpenBytes(1).status());
    queue_.reset();
    return cancelled;
  }));
  EXPECT_EQ(Take(request).size(), 1u);
}

}  // namespace
}  // namespace terrace
