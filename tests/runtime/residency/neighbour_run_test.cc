// Runs of neighbours, against a search over all runs of a map of pages.
#include "runtime/residency/neighbour_run.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tiers/memory/dram_tier.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr int64_t kPage = 4096;

// Tensors side by side from the start of a memory on; some of them are gone.
class Memory {
 public:
  explicit Memory(const std::vector<int64_t>& pages) {
    for (const int64_t each : pages) {
      tensors_.push_back(std::make_unique<Tensor>(
          TensorSpec{.name = std::to_string(tensors_.size()),
                     .size_bytes = each * kPage},
          TensorId{static_cast<int64_t>(tensors_.size())}));
      rooms_.push_back(tier_.TryAllocate(each * kPage));
      extents_.push_back(rooms_.back().extent());
    }
  }

  Tensor& tensor(size_t i) { return *tensors_[i]; }
  const Extent& extent(size_t i) const { return extents_[i]; }
  bool is_free(size_t i) const { return rooms_[i].empty(); }
  size_t size() const { return tensors_.size(); }
  const DramTier& tier() const { return tier_; }
  void Free(size_t i) { rooms_[i].Reset(); }

 private:
  static constexpr size_t kPages = 64;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kPages * kPage);
  DramTier tier_{absl::MakeSpan(bytes_)};
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<Extent> extents_;
  std::vector<Reservation> rooms_;
};

TEST(NeighbourRunTest, FreeRoomBetweenTwoIsOfTheRun) {
  Memory memory({1, 2, 1, 60});
  memory.Free(1);
  NeighbourRun run(memory.tier(), 4 * kPage);
  run.Add(memory.tensor(0), memory.extent(0));
  EXPECT_FALSE(run.complete());
  run.Add(memory.tensor(2), memory.extent(2));
  ASSERT_TRUE(run.complete());
  EXPECT_THAT(run.tensors(), ElementsAre(&memory.tensor(0), &memory.tensor(2)));
}

TEST(NeighbourRunTest, WhatLiesElsewhereStays) {
  Memory memory({1, 1, 1, 2, 59});
  memory.Free(3);
  NeighbourRun run(memory.tier(), 3 * kPage);
  run.Add(memory.tensor(0), memory.extent(0));
  run.Add(memory.tensor(2), memory.extent(2));
  ASSERT_TRUE(run.complete());
  EXPECT_THAT(run.tensors(), ElementsAre(&memory.tensor(2)));
}

TEST(NeighbourRunTest, OfTwoEndsTheOneThatIsUsedEarlierStays) {
  Memory memory({2, 2, 2, 58});
  NeighbourRun run(memory.tier(), 4 * kPage);
  run.Add(memory.tensor(2), memory.extent(2));
  run.Add(memory.tensor(0), memory.extent(0));
  EXPECT_FALSE(run.complete());
  run.Add(memory.tensor(1), memory.extent(1));
  ASSERT_TRUE(run.complete());
  EXPECT_THAT(run.tensors(),
              UnorderedElementsAre(&memory.tensor(1), &memory.tensor(2)));
}

TEST(NeighbourRunTest, WhatComesFreeByItselfIsOfTheRunAndLeavesNobody) {
  Memory memory({2, 2, 60});
  NeighbourRun alone(memory.tier(), 2 * kPage);
  alone.AddComing(memory.extent(0));
  EXPECT_TRUE(alone.complete());
  EXPECT_THAT(alone.tensors(), IsEmpty());
  NeighbourRun run(memory.tier(), 4 * kPage);
  run.AddComing(memory.extent(0));
  EXPECT_FALSE(run.complete());
  run.Add(memory.tensor(1), memory.extent(1));
  EXPECT_THAT(run.tensors(), ElementsAre(&memory.tensor(1)));
}

// The latest that the earliest of a run can be, where tensors that are not free
// stand at those places of the order; nullopt: there is no run.
std::optional<size_t> LatestEarliest(const Memory& memory,
                                     const std::vector<size_t>& place,
                                     int64_t bytes) {
  std::optional<size_t> best;
  for (size_t first = 0; first < memory.size(); ++first) {
    int64_t size = 0;
    size_t earliest = 0;
    for (size_t i = first; i < memory.size(); ++i) {
      size += memory.extent(i).size_bytes;
      if (!memory.is_free(i)) earliest = std::max(earliest, place[i]);
      if (size >= bytes && (!best.has_value() || earliest < *best)) {
        best = earliest;
      }
    }
  }
  return best;
}

TEST(NeighbourRunTest, IsTheOneWhoseEarliestUseIsLastOfAll) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> pages;
    for (int64_t left = 64; left > 0; left -= pages.back()) {
      pages.push_back(std::min<int64_t>(left, 1 + random() % 8));
    }
    Memory memory(pages);
    std::vector<size_t> order;
    for (size_t i = 0; i < memory.size(); ++i) {
      if (random() % 4 == 0) memory.Free(i);
      if (!memory.is_free(i)) order.push_back(i);
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<size_t> place(memory.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    const int64_t largest = memory.tier().largest_free_bytes();
    const int64_t bytes = largest + kPage * (1 + random() % 12);
    NeighbourRun run(memory.tier(), bytes);
    size_t shown = 0;
    while (shown < order.size() && !run.complete()) {
      const size_t i = order[shown++];
      run.Add(memory.tensor(i), memory.extent(i));
    }
    const std::optional<size_t> expected = LatestEarliest(memory, place, bytes);
    ASSERT_EQ(run.complete(), expected.has_value()) << "round " << round;
    if (!run.complete()) continue;
    ASSERT_EQ(shown, *expected + 1) << "round " << round;
    // They are enough, and not one is too many.
    const std::vector<Tensor*>& leaving = run.tensors();
    for (size_t without = 0; without <= leaving.size(); ++without) {
      int64_t size = 0;
      int64_t longest = 0;
      for (size_t i = 0; i < memory.size(); ++i) {
        const auto found =
            std::find(leaving.begin(), leaving.end(), &memory.tensor(i));
        const bool leaves =
            found != leaving.end() &&
            static_cast<size_t>(found - leaving.begin()) != without;
        const bool is_open = memory.is_free(i) || leaves;
        size = is_open ? size + memory.extent(i).size_bytes : 0;
        longest = std::max(longest, size);
      }
      ASSERT_EQ(longest >= bytes, without == leaving.size());
    }
  }
}

}  // namespace
}  // namespace terrace
