#include "policies/measured_rate.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kBytes = 1 << 20;
constexpr double kRate = 1e9;

// `count` transfers, one after the other, at `rate`.
void Move(MeasuredRate& measured, int count, double rate) {
  for (int i = 0; i < count; ++i) measured.Add(1, kBytes, kBytes / rate);
}

TEST(MeasuredRateTest, UnknownIsZeroAndAPriorIsBelieved) {
  EXPECT_EQ(MeasuredRate().bytes_per_second(), 0);
  EXPECT_EQ(MeasuredRate(kRate).bytes_per_second(), kRate);
  EXPECT_FALSE(MeasuredRate(kRate).slow());
}

TEST(MeasuredRateTest, WhatIsMeasuredReplacesThePrior) {
  MeasuredRate measured(4 * kRate);
  Move(measured, 30, kRate);
  EXPECT_NEAR(measured.bytes_per_second(), kRate, 0.02 * kRate);
}

TEST(MeasuredRateTest, AHalvedRateIsKnownToATenthAfterADozen) {
  MeasuredRate measured;
  Move(measured, 100, kRate);
  Move(measured, 12, kRate / 2);
  EXPECT_NEAR(measured.bytes_per_second(), kRate / 2, 0.12 * kRate / 2);
  Move(measured, 24, kRate);
  EXPECT_NEAR(measured.bytes_per_second(), kRate, 0.05 * kRate);
}

TEST(MeasuredRateTest, TransfersThatEndTogetherGiveNoRateOfTheirOwn) {
  MeasuredRate measured;
  for (int i = 0; i < 20; ++i) {
    measured.Add(4, 4 * kBytes, 4 * kBytes / kRate);
    EXPECT_NEAR(measured.bytes_per_second(), kRate, 1e-6 * kRate) << i;
  }
  // Nor one that ends right after another, which waited for both.
  for (int i = 0; i < 20; ++i) {
    measured.Add(1, kBytes, 2 * kBytes / kRate);
    measured.Add(1, kBytes, 0);
    EXPECT_NEAR(measured.bytes_per_second(), kRate, 0.2 * kRate) << i;
  }
}

TEST(MeasuredRateTest, OnePauseIsForgottenSoon) {
  MeasuredRate measured;
  Move(measured, 50, kRate);
  measured.Add(1, kBytes, 30);  // 30000 times what it takes
  EXPECT_GT(measured.bytes_per_second(), kRate / 4);
  Move(measured, 20, kRate);
  EXPECT_GT(measured.bytes_per_second(), 0.95 * kRate);
}

TEST(MeasuredRateTest, WhatIsUnansweredBoundsTheRateUntilItIsAnswered) {
  MeasuredRate measured;
  measured.SetUnanswered(30, kBytes);
  EXPECT_EQ(measured.bytes_per_second(), 0);  // still unknown
  Move(measured, 50, kRate);
  measured.SetUnanswered(2 * kBytes / kRate, kBytes);  // may be behind others
  EXPECT_NEAR(measured.bytes_per_second(), kRate, 1e-6 * kRate);
  measured.SetUnanswered(100 * kBytes / kRate, kBytes);
  EXPECT_NEAR(measured.bytes_per_second(), kRate / 100, 1);
  measured.Add(1, kBytes, kBytes / kRate);
  EXPECT_NEAR(measured.bytes_per_second(), kRate, 0.01 * kRate);
}

TEST(MeasuredRateTest, SlowIsBelowWhatItOnceHeld) {
  MeasuredRate measured;
  Move(measured, 40, kRate);
  EXPECT_FALSE(measured.slow());
  Move(measured, 40, 0.7 * kRate);
  EXPECT_FALSE(measured.slow());
  Move(measured, 40, 0.5 * kRate);
  EXPECT_TRUE(measured.slow());
  Move(measured, 40, kRate);
  EXPECT_FALSE(measured.slow());
}

TEST(MeasuredRateTest, AlwaysBetweenTheSlowestAndTheFastestTransfer) {
  constexpr uint64_t kSeed = 20261121;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  for (int run = 0; run < 200; ++run) {
    MeasuredRate measured;
    double least = 1e18;
    double most = 0;
    for (int i = 0; i < 100; ++i) {
      const auto bytes = static_cast<int64_t>(1 + random() % (8 << 20));
      const double rate = 1e6 * static_cast<double>(1 + random() % 5000);
      least = std::min(least, rate);
      most = std::max(most, rate);
      measured.Add(static_cast<int64_t>(1 + random() % 3), bytes,
                   static_cast<double>(bytes) / rate);
      ASSERT_GE(measured.bytes_per_second(), 0.999 * least);
      ASSERT_LE(measured.bytes_per_second(), 1.001 * most);
    }
  }
}

}  // namespace
}  // namespace terrace
