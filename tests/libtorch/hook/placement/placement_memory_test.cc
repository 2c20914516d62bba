#include "libtorch/hook/placement/placement_memory.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr size_t kPage = 4096;

TEST(PlacementMemory, RangesNeverOverlapAndComeBackWhole) {
  auto memory = *PlacementMemory::Map(64 * kPage);
  std::map<std::byte*, size_t> ranges;  // whole pages
  size_t used = 0;
  std::mt19937 random(5);
  for (int round = 0; round < 5'000; ++round) {
    if (random() % 2 == 0 && !ranges.empty()) {
      const auto at =
          std::next(ranges.begin(),
                    static_cast<std::ptrdiff_t>(random() % ranges.size()));
      memory->Give(at->first);
      used -= at->second;
      ranges.erase(at);
    } else {
      const size_t size = 1 + random() % (12 * kPage);
      std::byte* const range = memory->Take(size);
      if (range == nullptr) continue;
      const size_t pages = (size + kPage - 1) / kPage * kPage;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(range) % kPage, 0u);
      EXPECT_EQ(static_cast<int>(range[0]), 0);  // fresh
      range[0] = std::byte{1};
      EXPECT_TRUE(memory->Contains(range + pages - 1));
      const auto after = ranges.upper_bound(range);
      if (after != ranges.end()) {
        EXPECT_LE(range + pages, after->first);
      }
      if (after != ranges.begin()) {
        const auto before = std::prev(after);
        EXPECT_LE(before->first + before->second, range);
      }
      ranges.emplace(range, pages);
      used += pages;
    }
    EXPECT_EQ(memory->used_bytes(), static_cast<int64_t>(used));
  }
  for (const auto& [range, size] : ranges) memory->Give(range);
  std::byte* const all = memory->Take(64 * kPage);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(memory->Take(1), nullptr);
  memory->Give(all);
}

TEST(PlacementMemory, SizesThatCannotBeAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(PlacementMemory::Map(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(PlacementMemory::Map(-1).status()));
  const absl::Status much = PlacementMemory::Map(int64_t{1} << 60).status();
  EXPECT_TRUE(absl::IsResourceExhausted(much)) << much;
}

}  // namespace
}  // namespace terrace
