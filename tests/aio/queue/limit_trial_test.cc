// The parts of an in-flight limit that adapts: epoch, load, trial, what was
// left. The whole, on devices: ../in_flight_limit_test.cc.
#include "aio/queue/limit_trial.h"

#include <algorithm>

#include "aio/queue/load_share.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using Kind = LimitTrial::Kind;
using Verdict = LimitTrial::Verdict;

const absl::Time kTrialStart = absl::FromUnixSeconds(1000);
constexpr int64_t kMiB = 1 << 20;

absl::Time At(int milliseconds) {
  return kTrialStart + absl::Milliseconds(milliseconds);
}

TEST(LimitEpoch, IsWholeAfterItsTimeAndItsBytes) {
  LimitEpoch epoch;
  EXPECT_FALSE(epoch.Add(At(0), kMiB, true, 2 * kMiB));  // it begins
  EXPECT_FALSE(epoch.Add(At(4), 2 * kMiB, true, 2 * kMiB));
  EXPECT_TRUE(epoch.Add(At(10), kMiB, false, 2 * kMiB));
  EXPECT_DOUBLE_EQ(epoch.rate(At(10)), 3.0 * kMiB / 0.01);
  EXPECT_DOUBLE_EQ(epoch.read_share(), 2.0 / 3);
}

TEST(LimitEpoch, BytesOfTheLimitBeforeAreNotCounted) {
  LimitEpoch epoch;
  epoch.Begin(At(0));
  epoch.Skip(2 * kMiB);
  EXPECT_FALSE(epoch.Add(At(50), 2 * kMiB, true, kMiB));
  EXPECT_FALSE(epoch.Add(At(55), kMiB, true, kMiB));
  EXPECT_TRUE(epoch.Add(At(60), kMiB, true, kMiB));
  EXPECT_DOUBLE_EQ(epoch.rate(At(60)), 2.0 * kMiB / 0.01);
}

TEST(LimitEpoch, BeginsAnewWhenItWasStopped) {
  LimitEpoch epoch;
  epoch.Begin(At(0));
  epoch.Stop();
  EXPECT_FALSE(epoch.Add(At(100), 9 * kMiB, true, kMiB));
  EXPECT_FALSE(epoch.Add(At(105), 9 * kMiB, true, kMiB));
  EXPECT_TRUE(epoch.Add(At(110), kMiB, true, kMiB));
}

TEST(LoadShare, IsMixedUntilTwelveLimitsOfOneDirectionPassed) {
  LoadShare share;
  EXPECT_FALSE(share.is_mixed());
  share.OnEpoch(0.5);
  EXPECT_TRUE(share.is_mixed());
  share.OnAnswer(11 * kMiB, true, kMiB);
  EXPECT_TRUE(share.is_mixed());
  share.OnAnswer(kMiB, false, kMiB);
  share.OnAnswer(11 * kMiB, true, kMiB);
  EXPECT_TRUE(share.is_mixed());
  share.OnAnswer(kMiB, true, kMiB);
  EXPECT_FALSE(share.is_mixed());
}

TEST(LoadShare, ALittleOfTheOtherDirectionIsNoMixture) {
  LoadShare share;
  for (const double reads : {0.0, 0.1, 0.9, 1.0}) {
    share.OnEpoch(reads);
    EXPECT_FALSE(share.is_mixed()) << reads;
  }
}

TEST(LimitTrial, ASmallerOneIsKeptUnlessThroughputFalls) {
  const LimitTrial trial = {Kind::kSmaller, 8 * kMiB, 100, 1};
  EXPECT_EQ(trial.Judge(98, 1), Verdict::kKeep);
  EXPECT_EQ(trial.Judge(96, 1), Verdict::kRefuse);
  EXPECT_EQ(trial.Judge(70, 1), Verdict::kRefuseFar);
}

TEST(LimitTrial, ALargerOneIsKeptIfItBringsFivePercent) {
  const LimitTrial trial = {Kind::kLarger, 8 * kMiB, 100, 1};
  EXPECT_EQ(trial.Judge(106, 1), Verdict::kKeep);
  EXPECT_EQ(trial.Judge(104, 1), Verdict::kRefuse);
  EXPECT_EQ(trial.Judge(70, 1), Verdict::kRefuse);
}

TEST(LimitTrial, AnotherLoadTeachesNothing) {
  const LimitTrial trial = {Kind::kSmaller, 8 * kMiB, 100, 1};
  EXPECT_EQ(trial.Judge(20, 0.8), Verdict::kOtherLoad);
}

TEST(TrialPause, DoublesUpToThirtySeconds) {
  TrialPause pause;
  EXPECT_TRUE(pause.IsOver(kTrialStart));
  absl::Duration expected = absl::Milliseconds(500);
  for (int i = 0; i < 10; ++i) {
    pause.OnFailure(kTrialStart);
    EXPECT_FALSE(pause.IsOver(kTrialStart + expected - absl::Milliseconds(1)));
    EXPECT_TRUE(pause.IsOver(kTrialStart + expected));
    expected = std::min(2 * expected, absl::Seconds(30));
  }
}

TEST(LeftLimit, IsMissedAfterThreeSunkEpochs) {
  LeftLimit left;
  left.Note(8 * kMiB, 100, 1);
  EXPECT_FALSE(left.IsMissed(4 * kMiB, 90, 1));
  EXPECT_FALSE(left.IsMissed(4 * kMiB, 95, 1));  // not sunk: from the start
  EXPECT_FALSE(left.IsMissed(4 * kMiB, 90, 1));
  EXPECT_FALSE(left.IsMissed(4 * kMiB, 90, 1));
  EXPECT_TRUE(left.IsMissed(4 * kMiB, 90, 1));
  EXPECT_EQ(left.bytes(), 8 * kMiB);
}

TEST(LeftLimit, AnotherLoadForgetsIt) {
  LeftLimit left;
  left.Note(8 * kMiB, 100, 1);
  EXPECT_FALSE(left.IsMissed(4 * kMiB, 10, 0.5));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(left.IsMissed(4 * kMiB, 10, 1));
}

TEST(LeftLimit, RemembersTheMostThatWasLeft) {
  LeftLimit left;
  left.Note(8 * kMiB, 100, 1);
  left.Note(4 * kMiB, 90, 1);
  EXPECT_EQ(left.bytes(), 8 * kMiB);
  left.Note(4 * kMiB, 110, 1);
  EXPECT_EQ(left.bytes(), 8 * kMiB);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(left.IsMissed(2 * kMiB, 102, 1));
  EXPECT_TRUE(left.IsMissed(2 * kMiB, 102, 1));
}

}  // namespace
}  // namespace terrace
