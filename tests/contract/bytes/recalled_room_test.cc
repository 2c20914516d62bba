// Room at a queue of bytes: whose pins are recalled for it, and who has it.
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/bytes/byte_contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ByteRoomContract : public ByteQueueContract {
 protected:
  struct OneTooMany {
    Pin a;  // used before b
    Pin b;
    uint64_t request = 0;  // for a third tensor
  };
  // Two have room, and are pinned.
  OneTooMany PushOneMoreThanTwo() {
    Open(2);
    const TensorId a = Written("a", kPage, 1);
    const TensorId b = Written("b", kPage, 2);
    const TensorId c = Written("c", kPage, 3);
    OneTooMany all = {Have(a, Access::kRead), Have(b, Access::kRead)};
    all.request = Push({{c}});
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ByteRoomContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(ByteRoomContract, AnIdlePinIsRecalledForRoomOnce) {
  auto [pin_a, pin_b, request] = PushOneMoreThanTwo();
  Awaited news = Await(request);
  EXPECT_FALSE(news.pins.has_value());
  ASSERT_THAT(news.recalls, ElementsAre(pin_a.token()));  // used before b
  EXPECT_TRUE(Waits(request));
  pin_a.ReleaseUnchanged();
  EXPECT_TRUE(HasPattern(Take(request).front().data(), 3));
  EXPECT_EQ(stats().bytes.recalls, 1);
  EXPECT_EQ(stats().bytes.keeps, 0);
  EXPECT_TRUE(HasPattern(pin_b.data(), 2));
}

TEST_P(ByteRoomContract, AHintTakesTheRoomOfWhatNobodyHas) {
  Open(2);
  std::vector<TensorId> tensors;
  for (uint8_t i = 0; i < 3; ++i) {
    tensors.push_back(
        Written(std::string(1, static_cast<char>('a' + i)), kPage, i));
  }
  for (const TensorId each : tensors) Have(each, Access::kRead);
  // The first one's room went to the third, and all is written.
  runtime().Prefetch({tensors[0]});
  ASSERT_TRUE(world().WaitUntil([&] { return stats().prefetch_reads == 1; }));
  const int64_t demanded = stats().demand_reads;
  EXPECT_TRUE(HasPattern(Have(tensors[0], Access::kRead).data(), 0));
  EXPECT_EQ(stats().demand_reads, demanded);
  // What is pinned is left alone.
  Pin first = Have(tensors[0], Access::kRead);
  Pin second = Have(tensors[1], Access::kRead);
  runtime().Prefetch({tensors[2]});
  stats();
  EXPECT_TRUE(HasPattern(first.data(), 0));
  EXPECT_TRUE(HasPattern(second.data(), 1));
  EXPECT_EQ(stats().prefetch_reads, 1);
}

TEST_P(ByteRoomContract, WhereAPinIsKeptTheNextOneIsRecalledAtOnce) {
  auto [pin_a, pin_b, request] = PushOneMoreThanTwo();
  ASSERT_THAT(Await(request).recalls, ElementsAre(pin_a.token()));
  queue_->Keep(pin_a.token());
  ASSERT_THAT(Await(request).recalls, ElementsAre(pin_b.token()));
  queue_->Keep(pin_b.token());
  EXPECT_TRUE(Waits(request));
  pin_a.ReleaseUnchanged();  // its use is over
  EXPECT_EQ(Take(request).size(), 1u);
  EXPECT_EQ(stats().bytes.keeps, 2);
}

TEST_P(ByteRoomContract, WhatFindsNoRoomHoldsUpNoOther) {
  Open(3);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  const TensorId large = Written("large", 5 * kPage, 3);
  Pin pin = Have(a, Access::kRead);
  const uint64_t waits = Push({{large}});
  ASSERT_THAT(Await(waits).recalls, ElementsAre(pin.token()));
  queue_->Keep(pin.token());
  EXPECT_TRUE(Waits(waits));
  std::vector<Pin> here = Take(Push({{a}}));                  // needs no room
  EXPECT_TRUE(HasPattern(Have(b, Access::kRead).data(), 2));  // fits
  EXPECT_TRUE(Waits(waits));
  here.clear();
  pin.ReleaseUnchanged();
  EXPECT_TRUE(HasPattern(Take(waits).front().data(), 3));
}

TEST_P(ByteRoomContract, RoomThatWasMadeForALargeGroupIsNotTakenByLaterOnes) {
  Open(3);
  const TensorId large = Written("large", 5 * kPage, 9);
  const TensorId small = Written("small", kPage, 8);
  const TensorId next = Written("next", kPage, 7);
  std::vector<Pin> pins;
  for (const char* const name : {"a", "b", "c"}) {
    pins.push_back(Have(Written(name, kPage, 1), Access::kRead));
  }
  const uint64_t waits = Push({{large}});
  ASSERT_THAT(Await(waits).recalls,
              ElementsAre(pins[0].token(), pins[1].token(), pins[2].token()));
  pins[0].ReleaseUnchanged();
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().host.used_bytes == 2 * kPlace; }));
  const uint64_t later = Push({{small}});
  EXPECT_TRUE(Waits(later));
  Take(Push({{pins[1].tensor()}}));  // needs no room
  // Its asker uses what the large group waits for.
  std::vector<Pin> uses = Take(Push({{next}}, {pins[1].token()}));
  EXPECT_TRUE(Waits(waits));
  uses.clear();
  pins.clear();
  EXPECT_TRUE(HasPattern(Take(waits).front().data(), 9));
  EXPECT_TRUE(HasPattern(Take(later).front().data(), 8));
}

TEST_P(ByteRoomContract, WhoWaitsForWhatIsNotAnsweredEndsAtItsDeadline) {
  Open(1);
  const TensorId a = Written("a", kPage, 1);
  const TensorId b = Written("b", kPage, 2);
  Pin pin = Have(a, Access::kRead);
  const uint64_t request = PushBy({{b}}, Shortly());
  Awaited news = Await(request);
  if (!news.pins.has_value()) {
    EXPECT_THAT(news.recalls, ElementsAre(pin.token()));
    news = Await(request);
  }
  ASSERT_TRUE(news.pins.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(news.pins->status()));
  EXPECT_THAT(Message(news.pins->status()), HasSubstr("held: 1 queues, 'a'"));
  EXPECT_TRUE(HasPattern(pin.data(), 1));  // it stays pinned
}

TEST_P(ByteRoomContract, WhatIsNotAnsweredHoldsUpNoLaterGroup) {
  Open(2);
  const TensorId c = Written("c", kPage, 3);
  const TensorId d = Written("d", kPage, 4);
  Pin pin_a = Have(Written("a", kPage, 1), Access::kRead);
  Pin pin_b = Have(Written("b", kPage, 2), Access::kRead);
  const uint64_t first = Push({{c}});
  ASSERT_THAT(Await(first).recalls, ElementsAre(pin_a.token()));
  const uint64_t second = Push({{d}});
  ASSERT_THAT(Await(second).recalls, ElementsAre(pin_b.token()));
  EXPECT_TRUE(Waits(first));
  EXPECT_EQ(stats().bytes.recalls, 2);  // as much as both lack
  pin_b.ReleaseUnchanged();
  EXPECT_TRUE(HasPattern(Take(first).front().data(), 3));
  EXPECT_TRUE(HasPattern(Take(second).front().data(), 4));
  EXPECT_TRUE(HasPattern(pin_a.data(), 1));
}

TEST_P(ByteRoomContract, WhatWasAskedForInVainIsNotCountedOn) {
  Open(2);
  const TensorId c = Written("c", kPage, 3);
  Pin pin_a = Have(Written("a", kPage, 1), Access::kRead);
  Pin pin_b = Have(Written("b", kPage, 2), Access::kRead);
  const uint64_t first = PushBy({{c}}, Shortly());
  EXPECT_TRUE(world().WaitUntil([&] { return stats().bytes.recalls == 1; }));
  Awaited news = Await(first);
  if (!news.pins.has_value()) news = Await(first);
  ASSERT_TRUE(news.pins.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(news.pins->status()));
  const uint64_t second = Push({{c}});
  ASSERT_THAT(Await(second).recalls, ElementsAre(pin_b.token()));
  pin_b.ReleaseUnchanged();
  EXPECT_TRUE(HasPattern(Take(second).front().data(), 3));
}

}  // namespace
}  // namespace terrace
