#include "tiers/reservation.h"

#include <type_traits>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

static_assert(!std::is_copy_constructible_v<Reservation>);
static_assert(!std::is_copy_assignable_v<Reservation>);

TEST(ReservationTest, AnEmptyOneIsOfNoTier) {
  const Reservation room;
  EXPECT_TRUE(room.empty());
  EXPECT_EQ(room.tier(), kNoTier);
  EXPECT_EQ(room.from(), nullptr);
  EXPECT_EQ(room.extent(), Extent{});
}

TEST(ReservationTest, ItsEndGivesTheRangeBackOnce) {
  FakeReserver tier({TierKind::kDisk, 3});
  {
    const Reservation room = tier.Give(4096, 8192);
    EXPECT_EQ(room.tier(), tier.id());
    EXPECT_EQ(room.from(), &tier);
    EXPECT_EQ(room.extent(), (Extent{4096, 8192}));
    EXPECT_THAT(tier.freed(), IsEmpty());
  }
  EXPECT_THAT(tier.freed(), ElementsAre(Extent{4096, 8192}));
}

TEST(ReservationTest, ResetGivesItBackAndLeavesNothing) {
  FakeReserver tier({TierKind::kDisk, 1});
  Reservation room = tier.Give(0, 4096);
  room.Reset();
  EXPECT_TRUE(room.empty());
  EXPECT_EQ(room.extent(), Extent{});
  room.Reset();
  EXPECT_THAT(tier.freed(), ElementsAre(Extent{0, 4096}));
}

TEST(ReservationTest, WhoeverItMovesToHasIt) {
  FakeReserver tier({TierKind::kDisk, 1});
  Reservation first = tier.Give(0, 4096);
  Reservation second = std::move(first);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(second.extent(), (Extent{0, 4096}));
  first.Reset();
  EXPECT_THAT(tier.freed(), IsEmpty());
}

TEST(ReservationTest, WhatIsMovedIntoGivesUpItsOwn) {
  FakeReserver tier({TierKind::kDisk, 1}), other({TierKind::kDisk, 2});
  Reservation room = tier.Give(0, 4096);
  room = other.Give(8192, 4096);
  EXPECT_THAT(tier.freed(), ElementsAre(Extent{0, 4096}));
  EXPECT_EQ(room.tier(), other.id());
  room = Reservation();
  EXPECT_THAT(other.freed(), ElementsAre(Extent{8192, 4096}));
}

TEST(ReservationTest, MovedIntoItselfItStays) {
  FakeReserver tier({TierKind::kDisk, 1});
  Reservation room = tier.Give(0, 4096);
  Reservation& same = room;
  room = std::move(same);
  EXPECT_EQ(room.extent(), (Extent{0, 4096}));
  EXPECT_THAT(tier.freed(), IsEmpty());
}

}  // namespace
}  // namespace terrace
