#include "tests/support/accelerator/block_pool.h"

#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr AddressRange kRange{0x10000, 0x20000};
constexpr AcceleratorStream kHome = 0;
constexpr AcceleratorStream kOther = 1;

BlockPool::Pending NoUse(AcceleratorStream) {
  ADD_FAILURE() << "no stream was recorded";
  return {};
}
BlockPool::Pending UseOf(AcceleratorStream stream) {
  BlockPool::Pending use{{stream, 9}, {}};
  use.done.Advance(stream, 9);
  return use;
}

TEST(BlockPool, WhatAStreamHasFreedIsTheFirstItIsGivenAgain) {
  BlockPool pool(kRange, 512, 0x10000);
  const auto first = pool.Allocate(1000, kHome);
  const auto second = pool.Allocate(1000, kHome);
  ASSERT_TRUE(first && second);
  pool.Free(first->begin, NoUse);
  EXPECT_EQ(pool.Allocate(900, kHome)->begin, first->begin);
  EXPECT_EQ(pool.stats().allocated_bytes, 2048);
}

TEST(BlockPool, WhatAStreamHasFreedIsNoOthersUntilItIsReleased) {
  BlockPool pool(kRange, 512, 0x10000);
  const auto whole = pool.Allocate(0x10000, kHome);
  ASSERT_TRUE(whole);
  pool.Free(whole->begin, NoUse);
  EXPECT_FALSE(pool.Allocate(512, kOther));
  ASSERT_EQ(pool.Release().size(), 1u);
  EXPECT_TRUE(pool.Allocate(512, kOther));
}

TEST(BlockPool, ARecordedUseIsWaitedFor) {
  BlockPool pool(kRange, 512, 0x10000);
  const auto block = pool.Allocate(1024, kHome);
  pool.RecordUse(block->begin + 8, kOther);
  pool.RecordUse(block->begin, kHome);  // needs no record
  pool.Free(block->begin, UseOf);
  EXPECT_NE(pool.Allocate(1024, kHome)->begin, block->begin);
  EXPECT_TRUE(pool.Collect([](TaskMark) { return false; }).empty());
  EXPECT_EQ(pool.stats().allocated_bytes, 2048);
  const auto returned = pool.Collect(
      [](TaskMark mark) { return mark.stream == kOther && mark.number == 9; });
  ASSERT_EQ(returned.size(), 1u);
  EXPECT_TRUE(returned.front().done.Covers(kOther, 9));
  EXPECT_EQ(pool.Allocate(1024, kHome)->begin, block->begin);
}

TEST(BlockPool, TheLimitIsKeptToTheByte) {
  BlockPool pool(kRange, 512, 2048);
  EXPECT_FALSE(pool.Allocate(2049, kHome));
  const auto all = pool.Allocate(2048, kHome);
  ASSERT_TRUE(all);
  EXPECT_FALSE(pool.Allocate(1, kHome));
  pool.Free(all->begin, NoUse);
  EXPECT_TRUE(pool.Allocate(1, kHome));
  EXPECT_EQ(pool.stats().peak_bytes, 2048);
}

TEST(BlockPool, WhatStreamsHaveFreedCountsUntilItIsReleased) {
  BlockPool pool(kRange, 512, 2048);
  pool.Free(pool.Allocate(1024, kHome)->begin, NoUse);
  EXPECT_EQ(pool.stats().cached_bytes, 1024);
  EXPECT_FALSE(pool.Allocate(1536, kOther));
  pool.Release();
  EXPECT_EQ(pool.stats().cached_bytes, 0);
  EXPECT_TRUE(pool.Allocate(1536, kOther));
}

TEST(BlockPool, BlocksNeverOverlapAndAllComesBack) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    BlockPool pool(kRange, 512, 0x10000);
    std::map<uintptr_t, AddressRange> held;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 2 == 0) {
        const auto range = pool.Allocate(
            random() % 4000, static_cast<AcceleratorStream>(random() % 3));
        if (!range) {
          pool.Release();
          continue;
        }
        for (const auto& [begin, other] : held) {
          EXPECT_TRUE(range->end <= begin || other.end <= range->begin);
        }
        held[range->begin] = *range;
      } else if (!held.empty()) {
        const auto at = std::next(held.begin(),
                                  static_cast<int64_t>(random() % held.size()));
        pool.Free(at->first, NoUse);
        held.erase(at);
      }
    }
    for (const auto& [begin, range] : held) pool.Free(begin, NoUse);
    EXPECT_EQ(pool.stats().allocated_bytes, 0);
    pool.Release();
    EXPECT_TRUE(pool.Allocate(0x10000, kHome));
  }
}

}  // namespace
}  // namespace terrace
