// Which pins are asked for back, and which room comes of it.
#include "runtime/residency/byte_pins.h"

#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

class BytePinsTest : public testing::Test {
 protected:
  BytePinsTest() {
    for (const int64_t queue : {1, 2}) {
      pins_.Open(queue, planner_, /*by_next_use=*/true);
    }
  }
  std::vector<uint64_t> Asked() {
    std::vector<uint64_t> tokens;
    for (const RecalledPin& each : pins_.TakeAsked()) {
      tokens.push_back(each.token);
    }
    return tokens;
  }
  int64_t coming() const { return pins_.coming_bytes(kDramTier); }

  Tensor a_{{.name = "a", .size_bytes = 4096}, TensorId{0}};
  Tensor b_{{.name = "b", .size_bytes = 4096}, TensorId{1}};
  TracePlanner planner_;
  BytePins pins_;
};

TEST_F(BytePinsTest, RoomComesOnceAllPinsThereAreAskedFor) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.OnGranted(11, a_, kDramTier, 2);
  EXPECT_EQ(pins_.pinned_tensors(kDramTier), 1u);
  EXPECT_TRUE(pins_.MayAsk(a_, kDramTier, 2));
  EXPECT_FALSE(pins_.MayAsk(a_, kDramTier, 3));  // one is another's
  EXPECT_FALSE(pins_.MayAsk(b_, kDramTier, 0));
  pins_.AskForRoom(a_, kDramTier, 7);
  EXPECT_EQ(Asked(), (std::vector<uint64_t>{10, 11}));
  EXPECT_EQ(coming(), ResidentBytes(4096));
  EXPECT_FALSE(pins_.MayAsk(a_, kDramTier, 2));  // once at most
  EXPECT_FALSE(pins_.OnEnded(10));
  EXPECT_EQ(coming(), ResidentBytes(4096));
  EXPECT_TRUE(pins_.OnEnded(11));
  EXPECT_EQ(coming(), 0);
  EXPECT_EQ(pins_.pinned_tensors(kDramTier), 0u);
}

TEST_F(BytePinsTest, RoomComesForWhoAskedAlone) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.OnGranted(11, b_, kDramTier, 1);
  pins_.AskForRoom(a_, kDramTier, 7);
  pins_.AskForRoom(b_, kDramTier, 8);
  EXPECT_EQ(coming(), 2 * ResidentBytes(4096));
  EXPECT_EQ(pins_.coming_bytes_for(7), ResidentBytes(4096));
  EXPECT_EQ(pins_.coming_bytes_for(9), 0);
  pins_.Keep(10);
  EXPECT_EQ(pins_.coming_bytes_for(7), 0);
  EXPECT_TRUE(pins_.OnEnded(11));
  EXPECT_EQ(pins_.coming_bytes_for(8), 0);
}

TEST_F(BytePinsTest, WhatIsKeptMakesNoRoomForNow) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  EXPECT_EQ(pins_.Keep(10), nullptr);  // it was not asked for
  pins_.AskForRoom(a_, kDramTier, 7);
  EXPECT_EQ(pins_.Keep(10), &a_);
  EXPECT_EQ(coming(), 0);
  EXPECT_EQ(pins_.Keep(10), nullptr);
  EXPECT_TRUE(pins_.OnEnded(10));
  EXPECT_EQ(pins_.counts().asked, 1);
  EXPECT_EQ(pins_.counts().kept, 1);
}

TEST_F(BytePinsTest, AnEndedTokenIsIgnored) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.AskForRoom(a_, kDramTier, 7);
  EXPECT_TRUE(pins_.OnEnded(10));
  EXPECT_FALSE(pins_.OnEnded(10));
  EXPECT_EQ(pins_.Keep(10), nullptr);
  EXPECT_EQ(pins_.TensorOf(10, kDramTier), nullptr);
}

TEST_F(BytePinsTest, ANewHolderUsesTheTensorSoThatItsRoomDoesNotCome) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.AskForRoom(a_, kDramTier, 7);
  pins_.OnGranted(11, a_, kDramTier, 2);
  EXPECT_EQ(coming(), 0);
  EXPECT_TRUE(pins_.OnEnded(10));  // none that was asked for is left
  EXPECT_TRUE(pins_.MayAsk(a_, kDramTier, 1));
}

TEST_F(BytePinsTest, AnAccessAsksForAllPinsOnceAndForNoRoom) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.OnGranted(11, a_, kDramTier, 2);
  pins_.AskForAccess(a_);
  pins_.AskForAccess(a_);
  pins_.AskForAccess(b_);
  EXPECT_EQ(Asked(), (std::vector<uint64_t>{10, 11}));
  EXPECT_EQ(coming(), 0);
  EXPECT_TRUE(Asked().empty());
}

TEST_F(BytePinsTest, AClosedQueueIsNotAskedAndAnswersNothing) {
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.OnGranted(20, b_, kDramTier, 1);
  pins_.AskForRoom(a_, kDramTier, 7);
  pins_.Close(1);
  EXPECT_EQ(coming(), 0);
  EXPECT_FALSE(pins_.MayAsk(b_, kDramTier, 1));
  pins_.AskForAccess(b_);
  EXPECT_EQ(Asked(), (std::vector<uint64_t>{10}));
  EXPECT_EQ(pins_.pinned_tensors(kDramTier), 2u);  // its pins stay
  EXPECT_TRUE(pins_.OnEnded(10));
}

TEST_F(BytePinsTest, TiersCountForThemselves) {
  constexpr TierId kOther = {TierKind::kDram, 1};
  pins_.OnGranted(10, a_, kDramTier, 1);
  pins_.OnGranted(11, a_, kOther, 1);
  EXPECT_TRUE(pins_.MayAsk(a_, kDramTier, 1));
  pins_.AskForRoom(a_, kDramTier, 7);
  EXPECT_EQ(Asked(), (std::vector<uint64_t>{10}));
  EXPECT_EQ(pins_.coming_bytes(kOther), 0);
  EXPECT_EQ(pins_.TensorOf(11, kOther), &a_);
  EXPECT_EQ(pins_.TensorOf(11, kDramTier), nullptr);
  EXPECT_TRUE(pins_.IsPinned(a_, kOther));
}

}  // namespace
}  // namespace terrace
