// An optimizer over two devices of different rates, in virtual time: what it
// gets of their sum, when one becomes slow, and when one refuses writes. The
// reference of speed is bytes over the rates; that of contents is the serial
// loop of terrace/adam.h.
#include <cerrno>
#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/paced_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr double kMiB = 1 << 20;

class SeveralPaths : public testing::Test, protected PacedTraining {
 protected:
  SeveralPaths()
      : PacedTraining({{TierKind::kDisk, 96 * kMiB, 2 * kStateBytes},
                       {TierKind::kDisk, 32 * kMiB, 2 * kStateBytes}}) {}
};

TEST_F(SeveralPaths, ThreeToOneGivesTheSumOfTheRates) {
  WarmUp();
  const double share = Share(4);
  std::printf("%.3f of the sum\n", share);
  EXPECT_GE(share, 0.95);
  for (const int path : {0, 1}) {
    const TierStats told = this->path(path);
    EXPECT_NEAR(told.traffic.read_bytes_per_second, rate(path),
                0.1 * rate(path));
    EXPECT_NEAR(told.traffic.write_bytes_per_second, rate(path),
                0.1 * rate(path));
    EXPECT_EQ(told.state, TierState::kHealthy);
  }
  ExpectNothingLost();
}

TEST_F(SeveralPaths, FromTheSecondStepAfterOneHalvesItIsTheNewSum) {
  for (const int slow : {0, 1}) {
    WarmUp();
    SetRate(slow, rate(slow) / 2);
    const double first = Share(1);
    const double second = Share(1);
    const double later = Share(3);
    std::printf("path %d halves: %.3f, then %.3f, then %.3f of the new sum\n",
                slow, first, second, later);
    EXPECT_GE(second, 0.90);
    EXPECT_GE(later, 0.95);
    EXPECT_EQ(path(slow).state, TierState::kSlow);
    EXPECT_FALSE(path(slow).degraded);
    SetRate(slow, rate(slow) * 2);
    Share(1);
    EXPECT_GE(Share(1), 0.90) << "fast again";
    EXPECT_EQ(path(slow).state, TierState::kHealthy);
  }
  ExpectNothingLost();
}

TEST_F(SeveralPaths, AChangeAmidAStepIsFollowedTheSame) {
  WarmUp();
  const absl::Time start = world().clock().Now();
  ASSERT_TRUE(Step().ok());
  const absl::Duration half = (world().clock().Now() - start) / 2;
  world().clock().AddEvent(world().clock().Now() + half,
                           [this] { SetRate(0, rate(0) / 2); });
  Share(2);  // in which it happens, and the first one after
  const double second = Share(1);
  std::printf("%.3f of the new sum\n", second);
  EXPECT_GE(second, 0.90);
  ExpectNothingLost();
}

TEST_F(SeveralPaths, WhereWritesAreRefusedTrainingGoesOnAndNothingIsLost) {
  WarmUp();
  const absl::Time start = world().clock().Now();
  ASSERT_TRUE(Step().ok());
  const absl::Duration half = (world().clock().Now() - start) / 2;
  world().clock().AddEvent(world().clock().Now() + half, [&] {
    world().faults().FailFile(1, {.kind = FaultKind::kError, .error = EROFS},
                              CallFilter::kWrites);
  });
  for (int i = 0; i < 4; ++i) {
    const int64_t read = path(1).traffic.bytes_read;
    const absl::Status status = Step();
    EXPECT_TRUE(status.ok()) << status;
    // What lies there is read as long as it is needed.
    EXPECT_EQ(path(1).traffic.bytes_read > read, i < 2) << "step " << i;
    EXPECT_EQ(reference().Difference(model()), "");
  }
  // It was told, and hardly asked again: what was under way, one try a step.
  EXPECT_TRUE(path(1).degraded);
  EXPECT_EQ(path(1).state, TierState::kRefusesWrites);
  EXPECT_THAT(std::string(path(1).write_error.message()), HasSubstr("EROFS"));
  EXPECT_THAT(std::string(path(1).write_error.message()),
              HasSubstr(path(1).disk.file));
  EXPECT_EQ(stats().first_error.code(), path(1).write_error.code());
  EXPECT_LE(world().faults().faults(), Size().slots + 4);
  EXPECT_FALSE(path(0).degraded);

  world().faults().Clear();
  EXPECT_TRUE(Step().ok());
  EXPECT_FALSE(path(1).degraded);
  Share(2);
  EXPECT_GE(Share(1), 0.90);
  ExpectNothingLost();
}

TEST_F(SeveralPaths, WhatCannotBeReadIsDataLossAndNamed) {
  WarmUp();
  world().faults().FailFile(1, {.kind = FaultKind::kError, .error = EIO},
                            CallFilter::kReads);
  absl::Status lost = Step();
  if (lost.ok()) lost = Step();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  const std::string message(lost.message());
  EXPECT_THAT(message, HasSubstr("tensor '"));
  EXPECT_THAT(message, HasSubstr(path(1).disk.file));
  EXPECT_THAT(message, HasSubstr(", offset "));
  EXPECT_THAT(message, HasSubstr("EIO"));
  EXPECT_EQ(path(1).state, TierState::kUnreadable);
  world().faults().Clear();
  EXPECT_EQ(Step(), lost);  // for good
}

}  // namespace
}  // namespace terrace
