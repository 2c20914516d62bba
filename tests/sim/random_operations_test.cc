// The runtime against a plain map, over many seeds.
#include "tests/sim/random_operations.h"

#include <cstdio>
#include <iterator>

#include "gtest/gtest.h"
#include "tests/sim/seeds.h"

namespace terrace {
namespace {

// Of one run.
int Operations(int own) {
  const uint64_t given = seed_flags().operations;
  return given > 0 ? static_cast<int>(given) : own;
}

void RunSeeds(uint64_t count, Trouble trouble, int64_t most_lost,
              Tiers tiers = Tiers::kDisks) {
  if (InRealTime() && tiers != Tiers::kDisks) {
    GTEST_SKIP() << "nothing like these tiers behind the door";
  }
  if (InRealTime()) count = 20;
  int64_t pins = 0;
  int64_t failed = 0;
  int64_t lost = 0;
  int64_t steps = 0;
  int64_t refused = 0;
  int64_t refused_by_mapped = 0;
  int64_t moved = 0;
  ForEachSeed(count, [&](uint64_t seed) {
    RandomOperations operations(seed, trouble, /*transcript=*/nullptr, tiers);
    operations.Run(Operations(400));
    pins += operations.pins_checked();
    failed += operations.failed_groups();
    lost += operations.lost_tensors();
    steps += operations.world().mover_steps();
    refused += operations.refused_by_paths();
    refused_by_mapped += operations.refused_by_mapped();
    moved += operations.moved_tensors();
  });
  std::printf(
      "%lld pins compared, %lld groups failed, %lld tensors lost, "
      "%lld steps of the mover, %lld and %lld writes refused by paths and by "
      "mapped tiers, %lld tensors moved\n",
      static_cast<long long>(pins), static_cast<long long>(failed),
      static_cast<long long>(lost), static_cast<long long>(steps),
      static_cast<long long>(refused),
      static_cast<long long>(refused_by_mapped), static_cast<long long>(moved));
  if (seed_flags().count > 0 || seed_flags().operations > 0) return;
  if (InRealTime()) {  // as much as a host with other work comes to
    EXPECT_GT(pins, static_cast<int64_t>(4 * count));
    EXPECT_GT(moved, 0);
    return;
  }
  EXPECT_GT(pins, static_cast<int64_t>(20 * count));
  EXPECT_LE(lost, most_lost);
  EXPECT_GT(moved, static_cast<int64_t>(count));
  if (trouble == Trouble::kRefusal) {
    // More stays in several memories.
    const auto least =
        static_cast<int64_t>(tiers == Tiers::kSeveral ? count / 2 : count);
    EXPECT_GT(refused + refused_by_mapped, least);
    if (tiers != Tiers::kDisks) {
      EXPECT_GT(refused_by_mapped, least / 5);
    }
  }
}

TEST(RandomOperations, WithoutFaultsContentsEqualTheMap) {
  RunSeeds(150, Trouble::kNone, 14 * 150 / 3);
}

TEST(RandomOperations, WithFaultsContentsEqualTheMapOrTheErrorIsTyped) {
  RunSeeds(150, Trouble::kAny, 14 * 150 / 2);
}

TEST(RandomOperations, APathThatRefusesWritesIsNoticedByNobody) {
  RunSeeds(150, Trouble::kRefusal, 14 * 150 / 3);
}

TEST(RandomOperations, OverDrawnTiersContentsEqualTheMap) {
  RunSeeds(150, Trouble::kNone, 14 * 150 / 3, Tiers::kDrawn);
}

TEST(RandomOperations, OverDrawnTiersWithFaultsTheErrorIsTyped) {
  RunSeeds(150, Trouble::kAny, 14 * 150 / 2, Tiers::kDrawn);
}

TEST(RandomOperations, OverDrawnTiersOneThatRefusesWritesDoesNotMatter) {
  RunSeeds(150, Trouble::kRefusal, 14 * 150 / 3, Tiers::kDrawn);
}

TEST(RandomOperations, AtTwoWorkingTiersContentsEqualTheMap) {
  RunSeeds(150, Trouble::kNone, 14 * 150 / 3, Tiers::kDevice);
}

TEST(RandomOperations, AtTwoWorkingTiersWithFaultsTheErrorIsTyped) {
  RunSeeds(150, Trouble::kAny, 14 * 150 / 2, Tiers::kDevice);
}

TEST(RandomOperations, AtTwoWorkingTiersOneThatRefusesWritesDoesNotMatter) {
  RunSeeds(150, Trouble::kRefusal, 14 * 150 / 3, Tiers::kDevice);
}

TEST(RandomOperations, AtSeveralTiersOfAKindContentsEqualTheMap) {
  RunSeeds(150, Trouble::kNone, 14 * 150 / 3, Tiers::kSeveral);
}

TEST(RandomOperations, AtSeveralTiersOfAKindWithFaultsTheErrorIsTyped) {
  RunSeeds(150, Trouble::kAny, 14 * 150 / 2, Tiers::kSeveral);
}

TEST(RandomOperations, AtSeveralTiersOfAKindOneThatRefusesWritesDoesNotMatter) {
  RunSeeds(150, Trouble::kRefusal, 14 * 150 / 3, Tiers::kSeveral);
}

// Worlds for long; .ci/long gives each 10^5.
void RunOneWorldEach(Tiers tiers, int64_t least_pins, int64_t least_moved) {
  if (InRealTime()) {
    GTEST_SKIP() << "nothing like these tiers behind the door";
  }
  constexpr Trouble kTroubles[] = {Trouble::kNone, Trouble::kAny,
                                   Trouble::kRefusal};
  constexpr auto kWorlds = static_cast<int64_t>(std::size(kTroubles));
  int64_t moved = 0;
  ForEachSeed(kWorlds, [&](uint64_t seed) {
    RandomOperations operations(seed, kTroubles[seed % 3],
                                /*transcript=*/nullptr, tiers);
    operations.Run(Operations(30000));
    std::printf("%lld pins compared, %lld tensors moved\n",
                static_cast<long long>(operations.pins_checked()),
                static_cast<long long>(operations.moved_tensors()));
    EXPECT_GT(operations.pins_checked(), least_pins);
    EXPECT_GT(operations.moved_tensors(), 40);
    moved += operations.moved_tensors();
  });
  if (seed_flags().count > 0) return;
  EXPECT_GT(moved, least_moved * kWorlds);
}

// How much moves is drawn with the world: where there is one path, a mapped
// tier of a few pages, and memory that holds nearly all tensors, about a
// hundred; mostly several hundred elsewhere.
TEST(RandomOperations, ThousandsOfPinsInOneWorld) {
  RunOneWorldEach(Tiers::kDrawn, /*least_pins=*/2000, /*least_moved=*/300);
}

TEST(RandomOperations, ThousandsOfPinsAtTwoWorkingTiersInOneWorld) {
  RunOneWorldEach(Tiers::kDevice, /*least_pins=*/1000, /*least_moved=*/100);
}

}  // namespace
}  // namespace terrace
