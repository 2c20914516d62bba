// Which chunks an attempt pushes, over several attempts at one step.
#include "optimizer/step/step_progress.h"

#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// Pushes all that is to be pushed; which, in their order.
std::vector<int> PushAll(StepProgress& progress) {
  std::vector<int> pushed;
  while (progress.has_next()) {
    pushed.push_back(progress.next());
    progress.SetPushed();
  }
  return pushed;
}

class StepProgressTest : public testing::Test {
 protected:
  StepProgressTest() {
    progress_.Resize(4);
    progress_.BeginStep({true, false, true, true});
    progress_.BeginAttempt();
  }

  StepProgress progress_;
};

TEST_F(StepProgressTest, EachWantedChunkIsPushedOnceInOrder) {
  EXPECT_EQ(progress_.missing(), 3);
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(progress_.missing(), 3);
  for (const int chunk : {3, 0, 2}) progress_.SetDone(chunk);
  EXPECT_EQ(progress_.missing(), 0);
}

TEST_F(StepProgressTest, ALaterAttemptPushesWhatIsMissing) {
  PushAll(progress_);
  progress_.SetDone(2);
  progress_.SetRefused(0);
  progress_.BeginAttempt();
  // Chunk 3 is pushed still.
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{0}));
  EXPECT_EQ(progress_.missing(), 2);
}

TEST_F(StepProgressTest, WhatAnEarlierAttemptWasRefusedIsPushedLast) {
  PushAll(progress_);
  progress_.SetRefused(0);
  progress_.BeginAttempt();
  progress_.SetRefused(2);
  progress_.PushAgain(2);
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{0, 2}));
}

TEST_F(StepProgressTest, AnotherOrderHasWhatIsMissing) {
  progress_.BeginAttempt({3, 1, 0, 2});
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{3, 0, 2}));
}

TEST_F(StepProgressTest, OneGoesBeforeTheOthersAndOneIsNotNeeded) {
  progress_.BeginAttempt({3, 0, 2});
  progress_.SkipNext();
  EXPECT_EQ(progress_.missing(), 2);
  progress_.SetPushed();
  progress_.SetRefused(0);
  progress_.PushNext({2, 0});
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{2, 0}));
}

TEST_F(StepProgressTest, AQueueThatIsGoneHoldsNothing) {
  PushAll(progress_);
  progress_.SetDone(0);
  progress_.ForgetPushed();
  progress_.BeginAttempt();
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{2, 3}));
}

TEST_F(StepProgressTest, AnUpdateThatWasLostIsMissingAgain) {
  PushAll(progress_);
  for (const int chunk : {0, 2, 3}) progress_.SetDone(chunk);
  progress_.SetLost(2);
  EXPECT_EQ(progress_.missing(), 1);
  progress_.BeginAttempt();
  EXPECT_EQ(PushAll(progress_), (std::vector<int>{2}));
}

TEST_F(StepProgressTest, NoChunkIsUpdatedTwiceInAStep) {
  PushAll(progress_);
  progress_.SetDone(0);
  EXPECT_DEATH(progress_.SetDone(0), "kPushed");
  EXPECT_DEATH(progress_.SetDone(1), "kPushed");
}

TEST_F(StepProgressTest, NoStepBeginsBeforeAllAreDone) {
  EXPECT_DEATH(progress_.BeginStep({true, true, true, true}), "missing_");
  progress_.Clear();
  progress_.BeginStep({true, true, true, true});
  EXPECT_EQ(progress_.missing(), 4);
}

}  // namespace
}  // namespace terrace
