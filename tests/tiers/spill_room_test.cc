#include "tiers/memory/spill_room.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

class SpillRoomTest : public testing::Test {
 protected:
  absl::Span<std::byte> BytesOf(const Reservation& room) {
    return {arena_.data() + room.extent().offset,
            static_cast<size_t>(room.extent().size_bytes)};
  }

  std::vector<std::byte> arena_ = std::vector<std::byte>(4096);
  SpillRoom room_{kDramTier, arena_.data()};
};

TEST_F(SpillRoomTest, RangesAreAddressedFromTheArenaAndLieBesideIt) {
  auto first = room_.Allocate(3 * 4096);
  auto second = room_.Allocate(8192);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->tier(), kDramTier);
  std::fill(BytesOf(*first).begin(), BytesOf(*first).end(), std::byte{1});
  std::fill(BytesOf(*second).begin(), BytesOf(*second).end(), std::byte{2});
  EXPECT_EQ(arena_, std::vector<std::byte>(4096));
  EXPECT_EQ(BytesOf(*first).back(), std::byte{1});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(BytesOf(*first).data()) % 4096, 0u);
}

TEST_F(SpillRoomTest, ARangeGoesWithItsReservation) {
  auto first = room_.Allocate(4096);
  auto second = room_.Allocate(8192);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(room_.used_bytes(), 3 * 4096);
  first->Reset();
  EXPECT_EQ(room_.used_bytes(), 8192);
  second->Reset();
  EXPECT_EQ(room_.used_bytes(), 0);
  EXPECT_EQ(room_.peak_bytes(), 3 * 4096);
}

TEST_F(SpillRoomTest, WhatTheMachineHasNotIsRefused) {
  const auto refused = room_.Allocate(2 * AvailableMemoryBytes());
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(room_.used_bytes(), 0);
}

}  // namespace
}  // namespace terrace
