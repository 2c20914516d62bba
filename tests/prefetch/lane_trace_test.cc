#include "prefetch/lane_trace.h"

#include <cstdint>
#include <optional>

#include "gtest/gtest.h"

namespace terrace {
namespace {

using Followed = LaneTrace::Followed;

// A lane of tensors 0, 1, ... of 10 bytes each, beside which others use 90.
class LaneTraceTest : public testing::Test {
 protected:
  static constexpr int64_t kUses = 300;
  LaneTraceTest() {
    for (int64_t i = 0; i < kUses; ++i) lane_.OnUse({i}, 100 * i, 10);
    lane_.BeginStep(100 * kUses);
  }

  Followed Use(int64_t id) { return lane_.OnUse({id}, 100 * ++uses_, 10); }

  LaneTrace lane_;
  int64_t uses_ = 0;
};

TEST_F(LaneTraceTest, PlacesAreThoseOfAllLanes) {
  EXPECT_EQ(lane_.place(), 0);
  EXPECT_EQ(lane_.BytesUntil({5}), 500);
  EXPECT_EQ(lane_.ExpectedAt(5)->bytes, 500);
  EXPECT_EQ(Use(0), Followed::kUse);
  EXPECT_EQ(lane_.position(), 1);
  EXPECT_EQ(lane_.passed_bytes(), 10);
  EXPECT_EQ(lane_.place(), 100);
  EXPECT_EQ(lane_.followed_place(), 10);
  EXPECT_EQ(lane_.used_place(), 110);
  EXPECT_EQ(lane_.BytesUntil({5}), 400);
  EXPECT_EQ(lane_.BytesUntil({0}), 100 * kUses - 100);
  EXPECT_EQ(lane_.BytesUntil({-1}), std::nullopt);
}

TEST_F(LaneTraceTest, BehindItsEndItsNextStepIsExpected) {
  for (int64_t i = 0; i < kUses; ++i) EXPECT_EQ(Use(i), Followed::kUse);
  EXPECT_EQ(lane_.place(), 100 * kUses);
  EXPECT_EQ(lane_.BytesUntil({3}), 300);
  EXPECT_EQ(lane_.ExpectedAt(3)->tensor.value, 3);
  EXPECT_EQ(lane_.ExpectedAt(3)->bytes, 300);
  EXPECT_EQ(lane_.ExpectedAt(kUses), std::nullopt);
}

TEST_F(LaneTraceTest, WhatIsUsedOnceMoreSoonIsNoOtherPlace) {
  for (int64_t i = 0; i < 40; ++i) Use(i);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(Use(i), Followed::kNothing);
  EXPECT_EQ(lane_.position(), 40);
}

TEST_F(LaneTraceTest, SixteenInARowElsewhereAreAJump) {
  Use(0);
  for (int64_t i = 200; i < 215; ++i) EXPECT_EQ(Use(i), Followed::kNothing);
  EXPECT_EQ(lane_.position(), 1);
  EXPECT_EQ(Use(215), Followed::kJump);
  EXPECT_EQ(lane_.position(), 216);
  EXPECT_EQ(Use(216), Followed::kUse);
  // And back.
  for (int64_t i = 20; i < 35; ++i) EXPECT_EQ(Use(i), Followed::kNothing);
  EXPECT_EQ(Use(35), Followed::kJump);
  EXPECT_EQ(Use(216), Followed::kNothing);  // it is to come once more
  EXPECT_EQ(lane_.BytesUntil({216}), 100 * (216 - 36));
}

TEST_F(LaneTraceTest, AStepWithoutItsUsesForgetsThem) {
  lane_.BeginStep(100);
  EXPECT_EQ(lane_.size(), 0);
  EXPECT_EQ(lane_.BytesUntil({5}), std::nullopt);
  EXPECT_EQ(lane_.ExpectedAt(0), std::nullopt);
  EXPECT_EQ(Use(5), Followed::kNothing);
}

}  // namespace
}  // namespace terrace
