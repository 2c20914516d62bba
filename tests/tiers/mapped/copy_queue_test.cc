// Which tier's piece a thread is given next, and of which direction: a slow
// tier's pieces stay under way for longer, and are not given all threads for
// that.
#include "tiers/copy_queue.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/mapped/copy_fixture.h"

namespace terrace {
namespace {

class CopyQueueTest : public testing::Test {
 protected:
  void Begin(TierId tier, int pieces, IoClass io_class = IoClass::kWriteBack) {
    queue_.Begin(
        MoveOf(++tag_, {kDramTier, tier}, 0, pieces * kMiB, dram_, io_class));
  }
  void BeginRead(TierId tier, int pieces, IoClass io_class) {
    queue_.Begin(
        MoveOf(++tag_, {tier, kDramTier}, 0, pieces * kMiB, dram_, io_class));
  }
  // Takes so many pieces; a letter for the tier of each: 'f' or 's', of reads
  // 'F' or 'S'.
  std::string Take(int count) {
    std::string tiers;
    for (int i = 0; i < count; ++i) {
      const std::optional<CopyPiece> piece = queue_.Next(absl::UnixEpoch());
      if (!piece) break;
      const bool is_first = piece->medium == &first_;
      (is_first ? first_live_ : second_live_).push_back(*piece);
      const bool reads = piece->request.direction == IoDirection::kRead;
      tiers += is_first ? (reads ? 'F' : 'f') : (reads ? 'S' : 's');
    }
    return tiers;
  }
  void Land(std::vector<CopyPiece>* live) {
    ASSERT_FALSE(live->empty());
    queue_.Landed(live->front(), absl::OkStatus(), absl::UnixEpoch());
    live->erase(live->begin());
  }

  std::vector<std::byte> dram_ = std::vector<std::byte>(8 * kMiB);
  VectorMedium first_{"first", 8 * kMiB};
  VectorMedium second_{"second", 8 * kMiB};
  CopyQueue queue_{{{kFirst, &first_}, {kSecond, &second_}}};
  std::vector<CopyPiece> first_live_, second_live_;
  uint64_t tag_ = 0;
};

TEST_F(CopyQueueTest, OneTierAloneHasAllThreads) {
  Begin(kFirst, 4);
  EXPECT_EQ(Take(9), "ffff");
}

TEST_F(CopyQueueTest, OfTwoEachHasItsShareWhateverWasAskedFirst) {
  Begin(kFirst, 8);
  Begin(kSecond, 8);
  EXPECT_EQ(Take(6), "fsfsfs");
}

TEST_F(CopyQueueTest, WhatLandsSoonerGoesOnSooner) {
  Begin(kFirst, 8);
  EXPECT_EQ(Take(4), "ffff");
  Begin(kSecond, 8);
  Land(&first_live_);
  EXPECT_EQ(Take(1), "s");
  for (int i = 0; i < 6; ++i) {  // the first tier's stay under way
    Land(&second_live_);
    EXPECT_EQ(Take(1), "s");
  }
  Land(&first_live_);
  EXPECT_EQ(Take(1), "s");
  Land(&first_live_);
  EXPECT_EQ(Take(1), "f");
}

TEST_F(CopyQueueTest, OfEqualsTheOneWhoseTurnIsTheLongestAgo) {
  Begin(kFirst, 8);
  Begin(kSecond, 8);
  std::string order;
  for (int i = 0; i < 6; ++i) {  // one thread
    order += Take(1);
    Land(order.back() == 'f' ? &first_live_ : &second_live_);
  }
  EXPECT_EQ(order, "fsfsfs");
}

// A class's share of a tier's bytes would else be several pieces on end, all in
// one direction, and the other direction would have none under way.
TEST_F(CopyQueueTest, BothDirectionsOfATierMoveAtOnce) {
  BeginRead(kFirst, 8, IoClass::kDemand);
  Begin(kFirst, 8);
  EXPECT_EQ(Take(6), "FfFfFf");
}

TEST_F(CopyQueueTest, TheSlowerDirectionLeavesTheOtherItsThreads) {
  BeginRead(kFirst, 8, IoClass::kPrefetch);
  Begin(kFirst, 8);
  EXPECT_EQ(Take(4), "FfFf");
  for (int i = 0; i < 6; ++i) {  // writes stay under way
    const auto read = std::find_if(
        first_live_.begin(), first_live_.end(), [](const CopyPiece& piece) {
          return piece.request.direction == IoDirection::kRead;
        });
    ASSERT_NE(read, first_live_.end());
    std::iter_swap(first_live_.begin(), read);
    Land(&first_live_);
    EXPECT_EQ(Take(1), "F");
  }
}

TEST_F(CopyQueueTest, ATiersShareIsTheSameWithOneDirectionOrBoth) {
  BeginRead(kFirst, 8, IoClass::kPrefetch);
  Begin(kFirst, 8);
  Begin(kSecond, 8);
  EXPECT_EQ(Take(8), "FsfsFsfs");
}

// Of its own tier it is next; another tier's have one turn before it at most.
TEST_F(CopyQueueTest, ADemandWaitsForOneTurnOfTheOtherTierAtMost) {
  Begin(kFirst, 8);
  Begin(kSecond, 8);
  EXPECT_EQ(Take(2), "fs");
  Begin(kFirst, 1, IoClass::kDemand);
  const uint64_t demand = tag_;
  Land(&second_live_);
  EXPECT_EQ(Take(1), "s");
  Land(&first_live_);
  EXPECT_EQ(Take(1), "f");
  EXPECT_EQ(first_live_.back().request.tag, demand);
}

}  // namespace
}  // namespace terrace
