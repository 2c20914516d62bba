// An optimizer over three resting tiers whose rates are as 4 : 2 : 1, far
// memory, persistent memory and disks, each with room for 1.3 of its share: in
// virtual time, where copies of mapped tiers take what their medium's pace
// says.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/paced_training.h"

namespace terrace {
namespace {

constexpr double kRestingMiB = 1 << 20;
constexpr double kRoom = 1.3;  // of a tier's share

using Rates = std::vector<double>;

// The kinds of tiers, mapped ones first, and their rates.
struct Arrangement {
  const char* name;
  std::vector<TierKind> kinds;
  Rates rates;
};

const Arrangement kArrangements[] = {
    {"Disks",
     {TierKind::kDisk, TierKind::kDisk, TierKind::kDisk},
     {128 * kRestingMiB, 64 * kRestingMiB, 32 * kRestingMiB}},
    {"FarPmemDisk",
     {TierKind::kFar, TierKind::kPmem, TierKind::kDisk},
     {128 * kRestingMiB, 64 * kRestingMiB, 32 * kRestingMiB}},
    {"PmemTwoDisks",
     {TierKind::kPmem, TierKind::kDisk, TierKind::kDisk},
     {64 * kRestingMiB, 128 * kRestingMiB, 32 * kRestingMiB}},
    {"TwoSlowBelowADisk",
     {TierKind::kFar, TierKind::kPmem, TierKind::kDisk},
     {64 * kRestingMiB, 32 * kRestingMiB, 128 * kRestingMiB}},
};

// What a sanitiser finds does not depend on the rates: with one, that of all
// kinds of tiers is enough, of which the first slows down.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitised = true;
#else
constexpr bool kIsSanitised = false;
#endif

std::vector<Arrangement> Arrangements() {
  if (kIsSanitised) return {kArrangements[1]};
  return {std::begin(kArrangements), std::end(kArrangements)};
}

double ShareOf(const Rates& rates, size_t tier) {
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return rates[tier] / sum;
}

Rates WithHalf(Rates rates, size_t slow) {
  rates[slow] /= 2;
  return rates;
}

// Room for the shares at both rates, of so many chunks.
std::vector<PacedTier> TiersOf(const Arrangement& arrangement,
                               const Rates& later, int64_t chunks) {
  std::vector<PacedTier> tiers;
  for (size_t i = 0; i < arrangement.kinds.size(); ++i) {
    const double share =
        std::max(ShareOf(arrangement.rates, i), ShareOf(later, i));
    const double places = kRoom * share * static_cast<double>(2 * chunks);
    tiers.push_back(
        {arrangement.kinds[i], arrangement.rates[i],
         static_cast<int64_t>(places) * PacedTraining::kPlaceBytes});
  }
  return tiers;
}

void ExpectWithinBudgets(const Stats& stats) {
  for (size_t i = 1; i < stats.tiers.size(); ++i) {
    const TierStats& tier = stats.tiers[i];
    EXPECT_LE(tier.peak_bytes, tier.budget_bytes) << tier.name;
    EXPECT_GT(tier.peak_bytes, 0) << tier.name;
  }
}

// Mapped tiers as well as disks.
void ExpectTold(const Stats& stats, const Rates& rates, size_t slow) {
  for (size_t i = 0; i < rates.size(); ++i) {
    const TierStats& tier = stats.tiers[i + 1];
    EXPECT_NEAR(tier.traffic.read_bytes_per_second, rates[i], 0.1 * rates[i]);
    EXPECT_NEAR(tier.traffic.write_bytes_per_second, rates[i], 0.1 * rates[i]);
    EXPECT_EQ(tier.state, i == slow ? TierState::kSlow : TierState::kHealthy);
    EXPECT_TRUE(tier.write_error.ok()) << tier.write_error;
  }
}

constexpr size_t kNone = SIZE_MAX;
// A rate is known to a tenth after a dozen transfers: few of a step's, and few
// of those of the slowest tier.
constexpr int64_t kManyChunks = 4 * PacedTraining::kChunks;

class RestingTiersSpeed : public testing::TestWithParam<Arrangement> {};

TEST_P(RestingTiersSpeed, FourTwoOneGivesTheSumOfTheRates) {
  PacedTraining training(
      TiersOf(GetParam(), GetParam().rates, PacedTraining::kChunks));
  training.WarmUp();
  const double share = training.Share(4);
  std::printf("%.3f of the sum: %s\n", share, training.used().c_str());
  EXPECT_GE(share, 0.95);
  ExpectWithinBudgets(training.stats());
  ExpectTold(training.stats(), GetParam().rates, kNone);
  training.ExpectNothingLost();
}

TEST_P(RestingTiersSpeed, FromTheSecondStepAfterOneHalvesItIsTheNewSum) {
  const size_t most = kIsSanitised ? 1 : GetParam().rates.size();
  for (size_t slow = 0; slow < most; ++slow) {
    const Rates later = WithHalf(GetParam().rates, slow);
    PacedTraining training(TiersOf(GetParam(), later, kManyChunks),
                           {.chunks = kManyChunks, .check_every = 64});
    training.WarmUp();
    training.SetRate(static_cast<int>(slow), later[slow]);
    const double first = training.Share(1);
    const double second = training.Share(1);
    std::printf("tier %zu halves: %.3f, then %.3f of the new sum: %s\n", slow,
                first, second, training.used().c_str());
    EXPECT_GE(second, 0.90);
    ExpectWithinBudgets(training.stats());
    ExpectTold(training.stats(), later, slow);
    training.ExpectNothingLost();
  }
}

INSTANTIATE_TEST_SUITE_P(All, RestingTiersSpeed,
                         testing::ValuesIn(Arrangements()),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

// What moved over each link in between, in places.
std::vector<double> Carried(const Stats& before, const Stats& after) {
  std::vector<double> places;
  for (size_t i = 0; i < after.links.size(); ++i) {
    places.push_back(
        static_cast<double>(after.links[i].bytes - before.links[i].bytes) /
        PacedTraining::kPlaceBytes);
  }
  return places;
}

// Memory for a tenth of the state, faster memory for three tenths, a disk for
// the rest.
TEST(ThreeTiers, WhatRestsInABudgetIsWhatItsLinksCarry) {
  constexpr double kMost = 0.02;  // that a link may be off by
  constexpr int64_t kPmem = PacedTraining::kPlaces * 3 / 10;
  PacedTraining training(
      {{TierKind::kPmem, 128 * kRestingMiB, kPmem * PacedTraining::kPlaceBytes},
       {TierKind::kDisk, 64 * kRestingMiB, 2 * PacedTraining::kStateBytes}},
      {.slots = 16, .residents = 11});
  ASSERT_TRUE(training.Step().ok());
  Stats before = training.stats();
  for (int step = 2; step <= 6; ++step) {
    ASSERT_TRUE(training.Step().ok());
    const Stats after = training.stats();
    const auto residents =
        static_cast<double>(after.resident_bytes / PacedTraining::kPlaceBytes);
    EXPECT_GT(residents, 8);
    const double rest = PacedTraining::kPlaces - kPmem - residents;
    const std::vector<double> carried = Carried(before, after);
    std::printf("step %d: %.0f and %.0f of %d, %.0f and %.0f of %.0f\n", step,
                carried[0], carried[1], static_cast<int>(kPmem), carried[2],
                carried[3], rest);
    for (const int way : {0, 1}) {  // down, up
      EXPECT_NEAR(carried[way], kPmem, kMost * kPmem) << "step " << step;
      EXPECT_NEAR(carried[2 + way], rest, kMost * rest) << "step " << step;
    }
    before = after;
  }
  training.ExpectNothingLost();
}

}  // namespace
}  // namespace terrace
