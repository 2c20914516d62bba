#include "tiers/extent_allocator.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;

Extent MustAllocate(ExtentAllocator& pool, int64_t size, int64_t align = 1) {
  absl::StatusOr<Extent> extent = pool.Allocate(size, align);
  EXPECT_TRUE(extent.ok()) << extent.status();
  pool.CheckInvariants();
  return extent.value_or(Extent{});
}

TEST(ExtentAllocatorTest, RoundsUpToTheGranularity) {
  ExtentAllocator pool(10 * kPage);
  EXPECT_EQ(MustAllocate(pool, 1), (Extent{0, kPage}));
  EXPECT_EQ(MustAllocate(pool, kPage), (Extent{kPage, kPage}));
  EXPECT_EQ(MustAllocate(pool, kPage + 1), (Extent{2 * kPage, 2 * kPage}));
  EXPECT_EQ(pool.used_bytes(), 4 * kPage);
}

TEST(ExtentAllocatorTest, RefusesZeroAndLess) {
  ExtentAllocator pool(kPage);
  EXPECT_TRUE(absl::IsInvalidArgument(pool.Allocate(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool.Allocate(-5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool.Allocate(1, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(pool.Allocate(1, 3).status()));
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(ExtentAllocatorTest, RefusesTheOversized) {
  ExtentAllocator pool(4 * kPage);
  for (const int64_t size : {4 * kPage + 1, int64_t{1} << 62, INT64_MAX}) {
    const absl::Status status = pool.Allocate(size).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.ToString().find(std::to_string(size)), std::string::npos);
    EXPECT_NE(status.ToString().find("largest 16384"), std::string::npos)
        << status;
  }
  EXPECT_TRUE(pool.Allocate(4 * kPage).ok());
}

TEST(ExtentAllocatorTest, ATailBelowTheGranularityIsNotHandedOut) {
  ExtentAllocator pool(2 * kPage + 100);
  MustAllocate(pool, 2 * kPage);
  EXPECT_FALSE(pool.Allocate(1).ok());
  pool.Grow(kPage - 100);
  EXPECT_EQ(MustAllocate(pool, 1), (Extent{2 * kPage, kPage}));
}

TEST(ExtentAllocatorTest, AnEmptyPoolHasNothing) {
  ExtentAllocator pool(0);
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Allocate(1).status()));
  EXPECT_EQ(pool.largest_free_bytes(), 0);
  pool.Grow(3 * kPage);
  EXPECT_EQ(MustAllocate(pool, 3 * kPage), (Extent{0, 3 * kPage}));
}

TEST(ExtentAllocatorTest, AnExactFitIsReused) {
  ExtentAllocator pool(100 * kPage);
  std::vector<Extent> extents;
  for (int64_t pages : {5, 1, 3, 1, 4, 1, 3, 1}) {
    extents.push_back(MustAllocate(pool, pages * kPage));
  }
  // Holes of 5, 3, 4 and 3 pages, and a large rest.
  for (const size_t i : {0, 2, 4, 6}) pool.Free(extents[i]);
  EXPECT_EQ(MustAllocate(pool, 4 * kPage), extents[4]);
  EXPECT_EQ(MustAllocate(pool, 3 * kPage), extents[2]);  // the lower of two
  EXPECT_EQ(MustAllocate(pool, 3 * kPage), extents[6]);
  EXPECT_EQ(MustAllocate(pool, 5 * kPage), extents[0]);
}

TEST(ExtentAllocatorTest, TheSmallestHoleThatFitsIsTaken) {
  ExtentAllocator pool(18 * kPage);
  const Extent ten = MustAllocate(pool, 10 * kPage);
  MustAllocate(pool, kPage);
  const Extent six = MustAllocate(pool, 6 * kPage);
  MustAllocate(pool, kPage);
  pool.Free(ten);
  pool.Free(six);
  EXPECT_EQ(MustAllocate(pool, 5 * kPage).offset, six.offset);
}

TEST(ExtentAllocatorTest, FreeMergesWithBothNeighbours) {
  ExtentAllocator pool(3 * kPage);
  const Extent a = MustAllocate(pool, kPage);
  const Extent b = MustAllocate(pool, kPage);
  const Extent c = MustAllocate(pool, kPage);
  pool.Free(a);
  pool.Free(c);
  EXPECT_EQ(pool.largest_free_bytes(), kPage);
  EXPECT_EQ(pool.free_bytes(), 2 * kPage);
  pool.Free(b);
  pool.CheckInvariants();
  EXPECT_EQ(pool.largest_free_bytes(), 3 * kPage);
  EXPECT_EQ(MustAllocate(pool, 3 * kPage), (Extent{0, 3 * kPage}));
}

TEST(ExtentAllocatorTest, GrowthMergesWithTheFreeTail) {
  ExtentAllocator pool(4 * kPage);
  MustAllocate(pool, kPage);
  EXPECT_EQ(pool.free_tail_bytes(), 3 * kPage);
  pool.Grow(2 * kPage);
  EXPECT_EQ(pool.free_tail_bytes(), 5 * kPage);
  EXPECT_EQ(MustAllocate(pool, 5 * kPage), (Extent{kPage, 5 * kPage}));
  EXPECT_EQ(pool.free_tail_bytes(), 0);
}

TEST(ExtentAllocatorTest, AlignmentLeavesItsPaddingFree) {
  ExtentAllocator pool(64 * kPage);
  MustAllocate(pool, kPage);
  const Extent aligned = MustAllocate(pool, kPage, 16 * kPage);
  EXPECT_EQ(aligned, (Extent{16 * kPage, kPage}));
  EXPECT_EQ(MustAllocate(pool, 15 * kPage), (Extent{kPage, 15 * kPage}));
  // Beyond the pool only offset 0 is aligned.
  EXPECT_FALSE(pool.Allocate(kPage, int64_t{1} << 61).ok());
}

using ExtentAllocatorDeathTest = testing::Test;

TEST(ExtentAllocatorDeathTest, FreeingWhatIsNotAllocatedDies) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ExtentAllocator pool(8 * kPage);
  const Extent extent = MustAllocate(pool, 2 * kPage);
  EXPECT_DEATH(pool.Free({kPage, kPage}), "internal error");
  EXPECT_DEATH(pool.Free({0, kPage}), "internal error");
  EXPECT_DEATH(pool.Free({4 * kPage, kPage}), "internal error");
  pool.Free(extent);
  EXPECT_DEATH(pool.Free(extent), "internal error");
}

// A pool as one byte per page.
struct PlainMap {
  std::vector<char> used;

  // Free runs as the best fit sees them: the smallest, then the lowest, in
  // which an aligned range of `pages` fits; its offset, or -1.
  int64_t BestFit(int64_t pages, int64_t align_pages) const {
    int64_t best = -1;
    int64_t best_run = INT64_MAX;
    const auto size = static_cast<int64_t>(used.size());
    for (int64_t begin = 0; begin < size;) {
      int64_t end = begin;
      while (end < size && !used[static_cast<size_t>(end)]) ++end;
      const int64_t start =
          (begin + align_pages - 1) / align_pages * align_pages;
      if (end > begin && start + pages <= end && end - begin < best_run) {
        best = start;
        best_run = end - begin;
      }
      begin = end + 1;
    }
    return best;
  }

  int64_t LongestRun() const {
    int64_t longest = 0;
    int64_t run = 0;
    for (const char page : used) {
      run = page ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  }

  Extent WithFreeBeside(const Extent& extent) const {
    auto begin = static_cast<size_t>(extent.offset / kPage);
    auto end = static_cast<size_t>(extent.end() / kPage);
    while (begin > 0 && !used[begin - 1]) --begin;
    while (end < used.size() && !used[end]) ++end;
    return {static_cast<int64_t>(begin) * kPage,
            static_cast<int64_t>(end - begin) * kPage};
  }

  void Set(Extent extent, char value) {
    for (int64_t i = extent.offset / kPage; i < extent.end() / kPage; ++i) {
      EXPECT_NE(used[static_cast<size_t>(i)], value) << "page " << i;
      used[static_cast<size_t>(i)] = value;
    }
  }
};

TEST(ExtentAllocatorTest, AgreesWithAPlainMap) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&random](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    int64_t pages = 1 + below(300);
    ExtentAllocator pool(pages * kPage);
    PlainMap map{std::vector<char>(static_cast<size_t>(pages), 0)};
    std::vector<Extent> live;
    for (int step = 0; step < 1500; ++step) {
      const int64_t action = below(100);
      if (action < 55) {
        const int64_t want = 1 + below(below(10) == 0 ? 60 : 8);
        const int64_t align = int64_t{1} << below(5);
        const int64_t size = want * kPage - below(kPage);
        const absl::StatusOr<Extent> got = pool.Allocate(size, align * kPage);
        const int64_t expected = map.BestFit(want, align);
        ASSERT_EQ(got.ok(), expected >= 0) << got.status();
        if (!got.ok()) continue;
        ASSERT_EQ(*got, (Extent{expected * kPage, want * kPage}));
        map.Set(*got, 1);
        live.push_back(*got);
      } else if (action < 99 && !live.empty()) {
        const auto i =
            static_cast<size_t>(below(static_cast<int64_t>(live.size())));
        pool.Free(live[i]);
        map.Set(live[i], 0);
        live[i] = live.back();
        live.pop_back();
      } else if (action == 99) {
        const int64_t more = 1 + below(10);
        pool.Grow(more * kPage);
        pages += more;
        map.used.resize(static_cast<size_t>(pages), 0);
      }
      pool.CheckInvariants();
      ASSERT_EQ(pool.used_bytes(),
                std::count(map.used.begin(), map.used.end(), 1) * kPage);
      ASSERT_EQ(pool.largest_free_bytes(), map.LongestRun() * kPage);
      ASSERT_EQ(pool.capacity_bytes(), pages * kPage);
      if (live.empty()) continue;
      const Extent& any =
          live[static_cast<size_t>(below(static_cast<int64_t>(live.size())))];
      ASSERT_EQ(pool.WithFreeBeside(any), map.WithFreeBeside(any));
    }
  }
}

// Random churn over the shards of a model: uneven sizes, filled until a
// request fails, a tenth replaced, again and again.
TEST(ExtentAllocatorTest, FragmentationStaysBoundedUnderChurn) {
  constexpr int64_t kCapacity = int64_t{16} << 30;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::mt19937_64 random(seed);
    ExtentAllocator pool(kCapacity);
    // Layers of width 4096 and 11008, vocabulary shards, norms; in 1/8ths.
    const std::vector<int64_t> shapes = {4096 * 4096 / 4, 11008 * 4096 / 8,
                                         32000 * 4096 / 16, 4096 * 8,
                                         65536 * 3};
    std::vector<Extent> live;
    double worst = 1;
    for (int round = 0; round < 60; ++round) {
      while (true) {
        const absl::StatusOr<Extent> extent =
            pool.Allocate(shapes[random() % shapes.size()]);
        if (!extent.ok()) break;
        live.push_back(*extent);
      }
      worst = std::min(worst, static_cast<double>(pool.used_bytes()) /
                                  static_cast<double>(kCapacity));
      std::shuffle(live.begin(), live.end(), random);
      for (size_t i = live.size() / 10; i > 0; --i) {
        pool.Free(live.back());
        live.pop_back();
      }
    }
    pool.CheckInvariants();
    RecordProperty("worst_used_percent", static_cast<int>(100 * worst));
    EXPECT_GE(worst, 0.94) << "seed " << seed;
  }
}

TEST(ExtentAllocatorTest, WhatIsWithheldIsNeverHandedOut) {
  ExtentAllocator space(10 * 4096);
  space.Withhold({2 * 4096, 4096});
  space.Withhold({0, 4096});
  space.Withhold({9 * 4096, 4096});
  space.CheckInvariants();
  EXPECT_EQ(space.used_bytes(), 3 * 4096);
  EXPECT_EQ(space.largest_free_bytes(), 6 * 4096);
  EXPECT_EQ(*space.Allocate(6 * 4096), (Extent{3 * 4096, 6 * 4096}));
  EXPECT_EQ(*space.Allocate(4096), (Extent{4096, 4096}));
  EXPECT_FALSE(space.Allocate(4096).ok());
  space.Free({4096, 4096});
  space.Free({3 * 4096, 6 * 4096});
  space.CheckInvariants();
  EXPECT_EQ(space.free_bytes(), 7 * 4096);
}

TEST(ExtentAllocatorTest, ARangeIsTakenWhereAllOfItIsFree) {
  ExtentAllocator space(10 * 4096);
  EXPECT_TRUE(space.TryTake({2 * 4096, 3 * 4096}));
  for (const Extent& each : std::vector<Extent>{{4096, 2 * 4096},
                                                {4 * 4096, 4096},
                                                {3 * 4096, 4096},
                                                {9 * 4096, 2 * 4096},
                                                {10 * 4096, 4096},
                                                {-4096, 4096},
                                                {0, 0},
                                                {0, -4096},
                                                {5, 4096},
                                                {0, 5},
                                                {4096, INT64_MAX - 4095},
                                                {INT64_MAX - 4095, 4096}}) {
    EXPECT_FALSE(space.TryTake(each)) << each.offset << ", " << each.size_bytes;
    space.CheckInvariants();
  }
  EXPECT_TRUE(space.TryTake({0, 2 * 4096}));
  EXPECT_TRUE(space.TryTake({5 * 4096, 5 * 4096}));
  EXPECT_EQ(space.free_bytes(), 0);
  space.Free({2 * 4096, 3 * 4096});
  space.CheckInvariants();
}

TEST(ExtentAllocatorDeathTest, OnlyWhatIsFreeIsWithheld) {
  ExtentAllocator space(4 * 4096);
  ASSERT_TRUE(space.Allocate(2 * 4096).ok());
  EXPECT_DEATH(space.Withhold({4096, 2 * 4096}), "internal error");
  EXPECT_DEATH(space.Withhold({3 * 4096, 2 * 4096}), "internal error");
  EXPECT_DEATH(space.Withhold({2 * 4096, 5}), "internal error");
}

}  // namespace
}  // namespace terrace
