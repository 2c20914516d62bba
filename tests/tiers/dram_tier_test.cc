#include "tiers/memory/dram_tier.h"

#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kDramPage = 4096;

class DramTierTest : public testing::Test {
 protected:
  absl::StatusOr<std::optional<Reservation>> Ask(int64_t pages,
                                                 bool must = true) {
    return tier_.Allocate(pages * kDramPage, must);
  }
  // What is asked for and there.
  Reservation Take(int64_t pages) { return *std::move(*Ask(pages)); }

  std::vector<std::byte> arena_ = std::vector<std::byte>(8 * kDramPage);
  DramTier tier_{absl::MakeSpan(arena_)};
};

TEST_F(DramTierTest, ItIsTheFirstTierAndNamed) {
  EXPECT_EQ(tier_.id(), kDramTier);
  EXPECT_EQ(tier_.name(), "memory");
  EXPECT_TRUE(IsWorkingTier(tier_.id()));
}

TEST_F(DramTierTest, ItKnowsWhatItWasAskedForAs) {
  EXPECT_EQ(tier_.spec(), (TierSpec{TierKind::kDram, "", 8 * kDramPage}));
  const TierSpec asked = {TierKind::kDram, "node1", 8 * kDramPage + 5};
  EXPECT_EQ(DramTier(absl::MakeSpan(arena_), asked).spec(), asked);
}

TEST_F(DramTierTest, WhatIsUsedIsCountedAndItsPeakStays) {
  EXPECT_EQ(tier_.usage().capacity_bytes, 8 * kDramPage);
  EXPECT_EQ(tier_.usage().used_bytes, 0);
  Reservation two = Take(2);
  const Reservation three = Take(3);
  EXPECT_EQ(tier_.usage().used_bytes, 5 * kDramPage);
  EXPECT_EQ(tier_.free_bytes(), 3 * kDramPage);
  two.Reset();
  EXPECT_EQ(tier_.usage().used_bytes, 3 * kDramPage);
  EXPECT_EQ(tier_.usage().peak_bytes, 5 * kDramPage);
  EXPECT_EQ(tier_.free_bytes(), 5 * kDramPage);
  EXPECT_EQ(tier_.largest_free_bytes(), 3 * kDramPage);  // behind what is used
}

TEST_F(DramTierTest, FullItSaysSoAtOnceAndNeverGrows) {
  const Reservation most = Take(6);
  for (const bool must : {true, false}) {
    const auto refused = Ask(3, must);
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status()))
        << refused.status();
  }
  EXPECT_EQ(tier_.usage().used_bytes, 6 * kDramPage);
  EXPECT_TRUE(Ask(2).ok());
  EXPECT_EQ(tier_.NextEvent(), absl::InfiniteFuture());
  EXPECT_FALSE(tier_.late());
}

TEST_F(DramTierTest, AnExtentIsBytesOfTheArena) {
  const Reservation first = Take(1);
  const Reservation second = Take(1);
  EXPECT_EQ(tier_.Address(first.extent()), arena_.data());
  EXPECT_EQ(tier_.Address(second.extent()), arena_.data() + kDramPage);
}

TEST_F(DramTierTest, AbandonedItTakesNothingBack) {
  Reservation room = Take(2);
  tier_.Abandon();
  room.Reset();
  EXPECT_EQ(tier_.usage().used_bytes, 2 * kDramPage);
}

TEST_F(DramTierTest, ItGrowsAtItsEndAndItsBudgetWithIt) {
  DramTier tier(absl::MakeSpan(arena_).first(3 * kDramPage),
                {TierKind::kDram, "node1", 3 * kDramPage + 5});
  auto first = tier.Allocate(2 * kDramPage, true);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(tier.Allocate(2 * kDramPage, true).ok());
  tier.Extend(5 * kDramPage);
  EXPECT_EQ(tier.usage().capacity_bytes, 8 * kDramPage);
  EXPECT_EQ(tier.usage().used_bytes, 2 * kDramPage);
  EXPECT_EQ(tier.spec(),
            (TierSpec{TierKind::kDram, "node1", 8 * kDramPage + 5}));
  EXPECT_EQ(tier.largest_free_bytes(),
            6 * kDramPage);  // one with what was free
  const auto second = tier.Allocate(6 * kDramPage, true);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(tier.Address((*second)->extent()), arena_.data() + 2 * kDramPage);
}

using DramTierDeathTest = DramTierTest;

TEST_F(DramTierDeathTest, NothingIsGivenBackTwice) {
  const Extent extent = Take(1).extent();
  EXPECT_DEATH(tier_.Free(extent), "internal error");
}

}  // namespace
}  // namespace terrace
