#include "tiers/memory/spill/spill_room.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/machine.h"
#include "tiers/memory/spill/mapped_spill.h"
#include "tiers/memory/spill/shared_spill.h"

namespace terrace {
namespace {

class SpillRoomTest : public testing::Test {
 protected:
  absl::Span<std::byte> BytesOf(const Reservation& room) {
    return {arena_.data() + room.extent().offset,
            static_cast<size_t>(room.extent().size_bytes)};
  }

  std::vector<std::byte> arena_ = std::vector<std::byte>(4096);
  SpillRoom room_{kDramTier, std::make_shared<MappedSpill>(arena_.data())};
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

// As a job's process has it: a second mapping of the arena's memory file.
class SharedSpillTest : public testing::Test {
 protected:
  static constexpr int64_t kArena = 3 << 12;
  static constexpr int64_t kSpill = 16 << 12;

  void SetUp() override {
    arena_ = *HostArena::Create({.size_bytes = kArena,
                                 .growth_bytes = 1 << 12,
                                 .huge_pages = HugePages::kOff,
                                 .shared = true,
                                 .spill_bytes = kSpill});
    room_.emplace(kDramTier, std::make_shared<SharedSpill>(*arena_));
    const auto size = static_cast<size_t>(arena_->memory_file_bytes());
    void* const other = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                             arena_->memory_file().get(), 0);
    ASSERT_NE(other, MAP_FAILED);
    other_ = {static_cast<std::byte*>(other), size};
  }
  void TearDown() override { munmap(other_.data(), other_.size()); }

  std::byte& Ours(const Reservation& room, int64_t at) {
    return arena_->bytes().data()[room.extent().offset + at];
  }
  std::byte& Theirs(const Reservation& room, int64_t at) {
    return other_[static_cast<size_t>(room.extent().offset + at)];
  }
  int64_t FileBlocks() const {
    struct stat found = {};
    EXPECT_EQ(fstat(arena_->memory_file().get(), &found), 0);
    return found.st_blocks * 512;
  }

  std::unique_ptr<HostArena> arena_;
  std::optional<SpillRoom> room_;
  absl::Span<std::byte> other_;
};

TEST_F(SharedSpillTest, RangesLieBehindTheArenaForBothWhoHaveIt) {
  EXPECT_EQ(arena_->memory_file_bytes(), kArena + (1 << 12) + kSpill);
  auto first = room_->Allocate(2 << 12);
  auto second = room_->Allocate(1 << 12);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_GE(first->extent().offset, kArena + (1 << 12));
  Ours(*first, 8191) = std::byte{3};
  Theirs(*second, 0) = std::byte{4};
  EXPECT_EQ(Theirs(*first, 8191), std::byte{3});
  EXPECT_EQ(Ours(*second, 0), std::byte{4});
}

TEST_F(SharedSpillTest, ARangeTakesMemoryUntilItsReservationEnds) {
  const int64_t before = FileBlocks();
  EXPECT_EQ(before, kArena);
  auto room = room_->Allocate(4 << 12);
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(FileBlocks(), before + (4 << 12));
  Ours(*room, 5) = std::byte{9};
  const Extent extent = room->extent();
  room->Reset();
  EXPECT_EQ(FileBlocks(), before);
  // The next one begins with zeros, wherever it lies.
  auto next = room_->Allocate(4 << 12);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->extent(), extent);
  EXPECT_EQ(Ours(*next, 5), std::byte{0});
}

TEST_F(SharedSpillTest, WhatHasLeakedKeepsItsPages) {
  auto room = room_->Allocate(4 << 12);
  ASSERT_TRUE(room.ok());
  Ours(*room, 5) = std::byte{9};
  const int64_t at = room->extent().offset + 5;
  room_->Leak();
  room->Reset();
  EXPECT_EQ(arena_->bytes().data()[at], std::byte{9});
}

TEST_F(SharedSpillTest, WhatTheFileHasNoAddressesForIsRefused) {
  auto most = room_->Allocate(kSpill);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_TRUE(absl::IsResourceExhausted(room_->Allocate(1 << 12).status()));
  most->Reset();
  EXPECT_TRUE(room_->Allocate(1 << 12).ok());
}

}  // namespace
}  // namespace terrace
