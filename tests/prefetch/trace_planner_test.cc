#include "prefetch/trace_planner.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/eviction.h"

namespace terrace {
namespace {

using testing::ElementsAre;

constexpr TensorId kA{10}, kB{11}, kC{12};

class TracePlannerTest : public testing::Test {
 protected:
  TracePlannerTest() {
    planner_.Open(1);
    planner_.Open(2);
  }
  void Ask(int64_t queue, std::vector<TensorId> tensors) {
    for (const TensorId id : tensors) planner_.OnAccess(queue, id);
  }

  TracePlanner planner_;
  std::vector<TensorId> next_;
};

TEST_F(TracePlannerTest, NothingIsKnownBeforeTheFirstStepHasEnded) {
  EXPECT_FALSE(planner_.Upcoming(1, 2, &next_));
  Ask(1, {kA, kB});
  EXPECT_FALSE(planner_.Upcoming(1, 2, &next_));
  EXPECT_EQ(planner_.NextUse(kA), kUnknownUse);
}

TEST_F(TracePlannerTest, TheNextStepAsksForWhatTheLastOneDid) {
  Ask(1, {kA, kB, kC});
  planner_.BeginStep(1);
  ASSERT_TRUE(planner_.Upcoming(1, 2, &next_));
  EXPECT_THAT(next_, ElementsAre(kA, kB));
  EXPECT_EQ(planner_.NextUse(kA), 0);
  EXPECT_EQ(planner_.NextUse(kC), 2);
  Ask(1, {kA});
  ASSERT_TRUE(planner_.Upcoming(1, 3, &next_));
  EXPECT_THAT(next_, ElementsAre(kB, kC, kA));
  EXPECT_EQ(planner_.NextUse(kA), 2);
}

TEST_F(TracePlannerTest, TheFirstQueueThatAsksCounts) {
  Ask(1, {kA, kB, kC});
  Ask(2, {kC, kB});
  planner_.BeginStep(1);
  EXPECT_EQ(planner_.NextUse(kC), 2);
  planner_.BeginStep(2);
  EXPECT_EQ(planner_.NextUse(kA), 0);
  EXPECT_EQ(planner_.NextUse(kB), 1);
  EXPECT_EQ(planner_.NextUse(kC), 0);
  ASSERT_TRUE(planner_.Upcoming(2, 9, &next_));  // its own steps alone
  EXPECT_THAT(next_, ElementsAre(kC, kB));
}

TEST_F(TracePlannerTest, AQueueThatForgetsOrIsClosedSaysNothing) {
  for (const int64_t queue : {1, 2}) {
    Ask(queue, {kA});
    planner_.BeginStep(queue);
  }
  planner_.Forget(1);
  EXPECT_EQ(planner_.NextUse(kA), 0);
  planner_.Close(2);
  EXPECT_EQ(planner_.NextUse(kA), kUnknownUse);
  for (const int64_t queue : {1, 2, 3}) {  // nor one that never was
    EXPECT_FALSE(planner_.Upcoming(queue, 1, &next_));
  }
}

// Each asks for its own in its own step, and all have one order in bytes.
class MergedOrder : public TracePlannerTest {
 protected:
  MergedOrder() { planner_.Merge(); }
  // The model's step: forward over a and b, then what the optimizer has.
  void Step(int64_t state_bytes) {
    planner_.BeginStep(1);
    planner_.OnUse(1, 0, kA, 10);
    planner_.OnUse(1, 0, kB, 20);
    planner_.BeginStep(2);
    planner_.OnAccess(2, kC, /*stays=*/false, state_bytes);
  }
};

TEST_F(MergedOrder, NextUsesAreInBytesUsedUntilThen) {
  Step(400);
  EXPECT_EQ(planner_.NextUse(kA), kUnknownUse);
  planner_.BeginStep(1);
  EXPECT_EQ(planner_.NextUse(kA), 0);
  EXPECT_EQ(planner_.NextUse(kB), 10);
  EXPECT_EQ(planner_.NextUse(kC), 30);
  planner_.OnUse(1, 0, kA, 10);
  EXPECT_EQ(planner_.NextUse(kA), 420);  // b, c, and then again
}

TEST_F(MergedOrder, StepsOfSeveralQueuesAreOneStep) {
  Step(400);
  Step(400);
  planner_.BeginStep(1);
  planner_.OnUse(1, 0, kA, 10);
  planner_.OnUse(1, 0, kB, 20);
  // The optimizer's step, in the same one: the order goes on where it is.
  planner_.BeginStep(2);
  EXPECT_EQ(planner_.NextUse(kC), 0);
  EXPECT_EQ(planner_.NextUse(kB), 410);
}

TEST_F(MergedOrder, APositionGrowsUntilAnotherOrderBegins) {
  Step(400);
  planner_.BeginStep(1);
  const uint64_t order = planner_.order();
  EXPECT_EQ(planner_.position(), 0);
  const int64_t b_at = planner_.position() + planner_.NextUse(kB);
  planner_.OnUse(1, 0, kA, 10);
  EXPECT_EQ(planner_.position(), 10);
  EXPECT_EQ(planner_.position() + planner_.NextUse(kB), b_at);
  EXPECT_EQ(planner_.order(), order);
  planner_.BeginStep(1);
  EXPECT_NE(planner_.order(), order);
  EXPECT_EQ(planner_.position(), 0);
}

TEST_F(MergedOrder, AQueueThatIsClosedBeginsNoStepForTheOthers) {
  planner_.BeginStep(2);
  planner_.OnUse(1, 0, kA, 10);
  planner_.BeginStep(1);
  planner_.OnUse(1, 0, kB, 20);
  planner_.Close(2);
  EXPECT_EQ(planner_.NextUse(kA), kUnknownUse);
  planner_.BeginStep(1);
  EXPECT_EQ(planner_.NextUse(kA), 0);
  EXPECT_EQ(planner_.NextUse(kB), 10);
}

}  // namespace
}  // namespace terrace
