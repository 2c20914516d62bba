// How much a queue of bytes holds pinned, and what is asked back beyond that.
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/bytes/byte_contract_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// All four tensors have room, and two pins are held at most.
class HeldPinsContract : public ByteQueueContract {
 protected:
  static constexpr int kTensors = 4;

  void Begin() {
    Open(kTensors);
    for (uint8_t i = 0; i < kTensors; ++i) {
      tensors_.push_back(Written(std::to_string(i), kPage, i));
    }
    ASSERT_TRUE(queue_->HoldAtMost(2 * kPlace).ok());
  }
  // What is asked back with the pin.
  std::vector<uint64_t> Hold(int i) {
    Awaited news = Await(Push({{tensors_[static_cast<size_t>(i)]}}));
    EXPECT_TRUE(news.pins.has_value() && news.pins->ok());
    if (!news.pins.has_value() || !news.pins->ok()) return {};
    pins_.push_back(std::move((*news.pins)->front()));
    return news.recalls;
  }

  std::vector<TensorId> tensors_;
  std::vector<Pin> pins_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, HeldPinsContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(HeldPinsContract, OneMoreHasAnotherAskedBackWithItsAnswer) {
  Begin();
  EXPECT_THAT(Hold(0), IsEmpty());
  EXPECT_THAT(Hold(1), IsEmpty());
  queue_->Touch({tensors_[0]});  // later than the other
  EXPECT_THAT(Hold(2), ElementsAre(pins_[1].token()));
  pins_[1].ReleaseUnchanged();
  EXPECT_THAT(Hold(3), ElementsAre(pins_[0].token()));
  // Its bytes stay until somebody needs the room.
  const int64_t reads = stats().demand_reads;
  pins_[0].ReleaseUnchanged();
  EXPECT_THAT(Hold(0), ElementsAre(pins_[2].token()));
  EXPECT_TRUE(HasPattern(pins_.back().data(), 0));
  EXPECT_EQ(stats().demand_reads, reads);
}

TEST_P(HeldPinsContract, WhatIsAskedBackIsAskedOnceThoughItIsKept) {
  Begin();
  for (const int i : {0, 1}) EXPECT_THAT(Hold(i), IsEmpty());
  EXPECT_THAT(Hold(2), ElementsAre(pins_[0].token()));
  queue_->Keep(pins_[0].token());
  // It is on its way out, and counts no more.
  pins_[1].ReleaseUnchanged();
  EXPECT_THAT(Hold(3), IsEmpty());
  EXPECT_TRUE(HasPattern(pins_[0].data(), 0));
}

TEST_P(HeldPinsContract, AGroupThatIsMoreComesAndIsAskedBackWithItself) {
  Begin();
  Awaited news =
      Await(Push({{tensors_[0]}, {tensors_[1]}, {tensors_[2]}, {tensors_[3]}}));
  ASSERT_TRUE(news.pins.has_value() && news.pins->ok());
  EXPECT_EQ((*news.pins)->size(), 4u);
  EXPECT_EQ(news.recalls.size(), 2u);
}

TEST_P(HeldPinsContract, WhoseUserWaitsIsNotAskedBackUntilThatIsOver) {
  Begin();
  for (const int i : {0, 1}) EXPECT_THAT(Hold(i), IsEmpty());
  const uint64_t first[] = {pins_[0].token()};
  ASSERT_TRUE(queue_->BeginWaiting(first).ok());
  EXPECT_THAT(Hold(2), ElementsAre(pins_[1].token()));
  pins_[1].ReleaseUnchanged();
  const uint64_t third[] = {pins_[2].token()};
  ASSERT_TRUE(queue_->BeginWaiting(third).ok());
  const std::vector<uint64_t> recalls = Hold(3);
  EXPECT_THAT(recalls, ElementsAre(pins_[3].token()));  // no other may end
  queue_->Keep(recalls.front());
  ASSERT_TRUE(queue_->HoldAtMost(kPlace).ok());
  queue_->EndWaiting(first);
  EXPECT_THAT(AwaitRecalls(*queue_), ElementsAre(first[0]));
}

TEST_P(HeldPinsContract, LessThanIsHeldIsAskedBackAtOnce) {
  Begin();
  for (const int i : {0, 1}) EXPECT_THAT(Hold(i), IsEmpty());
  ASSERT_TRUE(queue_->HoldAtMost(0).ok());
  EXPECT_THAT(AwaitRecalls(*queue_),
              ElementsAre(pins_[0].token(), pins_[1].token()));
  EXPECT_TRUE(absl::IsInvalidArgument(queue_->HoldAtMost(-1)));
}

}  // namespace
}  // namespace terrace
