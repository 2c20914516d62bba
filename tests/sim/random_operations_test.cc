// The runtime against a plain map, over many seeds.
#include "tests/sim/random_operations.h"

#include <cstdio>

#include "gtest/gtest.h"
#include "tests/sim/seeds.h"

namespace terrace {
namespace {

void RunSeeds(uint64_t count, bool faulty, int64_t most_lost) {
  int64_t pins = 0;
  int64_t failed = 0;
  int64_t lost = 0;
  int64_t steps = 0;
  ForEachSeed(count, [&](uint64_t seed) {
    RandomOperations operations(seed, faulty);
    operations.Run(400);
    pins += operations.pins_checked();
    failed += operations.failed_groups();
    lost += operations.lost_tensors();
    steps += operations.world().mover_steps();
  });
  std::printf(
      "%lld pins compared, %lld groups failed, %lld tensors lost, "
      "%lld steps of the mover\n",
      static_cast<long long>(pins), static_cast<long long>(failed),
      static_cast<long long>(lost), static_cast<long long>(steps));
  if (seed_flags().count > 0) return;
  EXPECT_GT(pins, static_cast<int64_t>(20 * count));
  EXPECT_LE(lost, most_lost);
}

TEST(RandomOperations, WithoutFaultsContentsEqualTheMap) {
  RunSeeds(150, false, 14 * 150 / 3);
}

TEST(RandomOperations, WithFaultsContentsEqualTheMapOrTheErrorIsTyped) {
  RunSeeds(150, true, 14 * 150 / 2);
}

}  // namespace
}  // namespace terrace
