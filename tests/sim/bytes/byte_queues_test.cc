// Queues of bytes against a plain map, over many seeds.
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/sim/bytes/byte_customers.h"
#include "tests/sim/digest.h"
#include "tests/sim/seeds.h"

namespace terrace {
namespace {

int Operations(int own) {
  const uint64_t given = seed_flags().operations;
  return given > 0 ? static_cast<int>(given) : own;
}

void RunSeeds(uint64_t count, int operations, ByteCustomersOptions options) {
  ByteCustomers::Seen all;
  int64_t ahead = 0;
  int64_t used = 0;  // of these
  if (InRealTime()) count = 2;
  ForEachSeed(count, [&](uint64_t seed) {
    options.seed = seed;
    ByteCustomers customers(options);
    customers.Run(Operations(operations));
    customers.Drain();
    const ByteCustomers::Seen& seen = customers.seen();
    all.uses += seen.uses;
    all.answers += seen.answers;
    all.failures += seen.failures;
    all.recalls += seen.recalls;
    all.beyond += seen.beyond;
    all.joins += seen.joins;
    const Stats stats = customers.world().runtime().GetStats();
    EXPECT_EQ(stats.bytes.beyond_bytes, 0);
    ahead += stats.prefetch_reads;
    used += stats.prefetch_hits;
  });
  std::printf(
      "%lld uses compared, %lld requests answered, %lld of them failed, %lld "
      "recalls, %lld groups beyond the budget, %lld joins\n",
      static_cast<long long>(all.uses), static_cast<long long>(all.answers),
      static_cast<long long>(all.failures), static_cast<long long>(all.recalls),
      static_cast<long long>(all.beyond), static_cast<long long>(all.joins));
  std::printf("%lld tensors read ahead, %lld of them used\n",
              static_cast<long long>(ahead), static_cast<long long>(used));
  EXPECT_TRUE(!options.reads || all.failures == 0);
  if (seed_flags().count > 0 || seed_flags().operations > 0) return;
  if (InRealTime()) {  // as much as a host with other work comes to
    EXPECT_GT(all.uses, static_cast<int64_t>(count) * operations / 200);
    return;
  }
  EXPECT_GT(all.uses, static_cast<int64_t>(count) * operations / 30);
  EXPECT_GT(all.recalls, static_cast<int64_t>(count));
  // Few, as random uses have no order for long.
  EXPECT_GT(used, static_cast<int64_t>(count / 2));
}

TEST(ByteQueues, ContentsEqualTheMap) { RunSeeds(60, 1500, {}); }

TEST(ByteQueues, WhereNobodyExcludesAnotherEveryRequestIsServed) {
  RunSeeds(60, 3000, {.reads = true});
}

TEST(ByteQueues, WithFaultsContentsEqualTheMapOrTheErrorIsTyped) {
  RunSeeds(60, 1500, {.faults = true});
}

TEST(ByteQueues, ACustomerThatNeverAnswersHoldsUpOnlyWhoWaitsForIt) {
  RunSeeds(60, 1500, {.never = true});
}

TEST(ByteQueues, WithFaultsAndACustomerThatNeverAnswersNobodyHangs) {
  RunSeeds(30, 1500, {.faults = true, .never = true});
}

TEST(ByteQueues, AtADeviceContentsEqualTheMap) {
  if (InRealTime()) GTEST_SKIP() << "no program there has a device";
  RunSeeds(60, 1500, {.device = true});
}

TEST(ByteQueues, AtADeviceWithFaultsContentsEqualTheMap) {
  if (InRealTime()) GTEST_SKIP() << "no program there has a device";
  RunSeeds(60, 1500, {.faults = true, .device = true});
}

TEST(ByteQueues, AtADeviceWithACustomerThatNeverAnswersNobodyHangs) {
  if (InRealTime()) GTEST_SKIP() << "no program there has a device";
  RunSeeds(40, 1500, {.never = true, .device = true});
}

// .ci/long gives it 10^6.
TEST(ByteQueues, AHundredThousandOperationsInOneWorld) {
  if (InRealTime()) GTEST_SKIP() << "it takes minutes of real time";
  RunSeeds(1, 100'000, {});
}

TEST(ByteQueues, AHundredThousandOperationsWithFaultsAndNoAnswersInOneWorld) {
  if (InRealTime()) GTEST_SKIP() << "it takes minutes of real time";
  RunSeeds(1, 100'000, {.faults = true, .never = true});
}

TEST(ByteQueues, ARunRepeats) {
  if (InRealTime()) GTEST_SKIP() << "nothing repeats in real time";
  const auto run = [](Transcript* transcript) {
    ByteCustomers customers(
        {.seed = 3, .faults = true, .transcript = transcript});
    customers.Run(2000);
    customers.Drain();
  };
  Transcript first;
  run(&first);
  Transcript second;
  run(&second);
  EXPECT_GT(first.size(), 100u);
  EXPECT_EQ(DigestOf(first), DigestOf(second));
}

}  // namespace
}  // namespace terrace
