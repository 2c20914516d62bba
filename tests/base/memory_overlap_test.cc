#include "base/memory_overlap.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using Pair = std::pair<size_t, size_t>;

class MemoryOverlap : public testing::Test {
 protected:
  MemoryRange At(int64_t start, int64_t size_bytes) const {
    return {memory_ + start, size_bytes};
  }

  char memory_[256] = {};
};

TEST_F(MemoryOverlap, IsNotBetweenNeighbours) {
  EXPECT_EQ(FindOverlap({}), std::nullopt);
  const std::vector<MemoryRange> halves = {At(8, 8), At(0, 8), At(16, 1)};
  EXPECT_EQ(FindOverlap(halves), std::nullopt);
}

TEST_F(MemoryOverlap, IsOneByteOrAll) {
  const std::vector<MemoryRange> one = {At(40, 8), At(7, 8), At(0, 8)};
  EXPECT_EQ(FindOverlap(one), Pair(1, 2));
  const std::vector<MemoryRange> same = {At(0, 8), At(64, 8), At(0, 8)};
  EXPECT_EQ(FindOverlap(same), Pair(0, 2));
}

TEST_F(MemoryOverlap, IsNotWithWhatHasNoBytes) {
  const std::vector<MemoryRange> ranges = {
      At(0, 8), {nullptr, 0}, At(4, 0), {nullptr, 0}};
  EXPECT_EQ(FindOverlap(ranges), std::nullopt);
}

// Against every byte's own owner.
TEST_F(MemoryOverlap, IsFoundWhereverThereIsOne) {
  std::mt19937_64 random(20261122);
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<MemoryRange> ranges;
    std::vector<int> owners(sizeof(memory_), 0);
    bool shared = false;
    for (int i = 0; i < 6; ++i) {
      const auto start = static_cast<int64_t>(random() % 220);
      const auto size = static_cast<int64_t>(random() % 24);
      ranges.push_back(At(start, size));
      for (int64_t byte = start; byte < start + size; ++byte) {
        shared = ++owners[static_cast<size_t>(byte)] > 1 || shared;
      }
    }
    const auto overlap = FindOverlap(ranges);
    ASSERT_EQ(overlap.has_value(), shared) << "round " << round;
    if (!overlap) continue;
    ++found;
    const auto [a, b] = *overlap;
    ASSERT_LT(a, b);
    const auto* const start = static_cast<const char*>(ranges[a].start);
    const auto* const other = static_cast<const char*>(ranges[b].start);
    EXPECT_TRUE(start < other + ranges[b].size_bytes &&
                other < start + ranges[a].size_bytes);
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(found, 1900);
}

}  // namespace
}  // namespace terrace
