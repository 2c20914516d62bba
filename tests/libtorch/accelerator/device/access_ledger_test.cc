// The ledger beside a plain array of bytes that remembers every access.
#include "tests/support/accelerator/access_ledger.h"

#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr AddressRange kAll{0x1000, 0x1040};

VectorClock ClockOf(AcceleratorStream stream, int64_t time) {
  VectorClock clock;
  clock.Advance(stream, time);
  return clock;
}

TEST(AccessLedger, AReadAfterAWriteThatIsNotOverConflicts) {
  AccessLedger ledger;
  EXPECT_FALSE(ledger.Touch(kAll, {0, 1, "fill"}, true, ClockOf(0, 1)));
  const auto found = ledger.Touch(kAll, {1, 1, "sum"}, false, ClockOf(1, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->other.by, "fill");
  EXPECT_TRUE(found->is_other_write);
  VectorClock ordered = ClockOf(2, 1);
  ordered.Advance(0, 1);
  EXPECT_FALSE(ledger.Touch(kAll, {2, 1, "sum"}, false, ordered));
}

TEST(AccessLedger, ReadsDoNotConflict) {
  AccessLedger ledger;
  EXPECT_FALSE(ledger.Touch(kAll, {0, 1, "sum"}, false, ClockOf(0, 1)));
  EXPECT_FALSE(ledger.Touch(kAll, {1, 1, "sum"}, false, ClockOf(1, 1)));
  EXPECT_TRUE(ledger.Touch(kAll, {1, 2, "fill"}, true, ClockOf(1, 2)));
}

TEST(AccessLedger, WhatIsApartDoesNotConflict) {
  AccessLedger ledger;
  EXPECT_FALSE(
      ledger.Touch({0x1000, 0x1010}, {0, 1, "fill"}, true, ClockOf(0, 1)));
  EXPECT_FALSE(
      ledger.Touch({0x1010, 0x1020}, {1, 1, "fill"}, true, ClockOf(1, 1)));
  EXPECT_TRUE(
      ledger.Touch({0x100F, 0x1011}, {1, 2, "fill"}, true, ClockOf(1, 2)));
}

TEST(AccessLedger, ANewBlockRemembersWhatTheOldOnesStreamsDo) {
  AccessLedger ledger;
  ledger.Touch(kAll, {1, 1, "sum"}, false, ClockOf(1, 1));
  ledger.Allocate(kAll, 0, 0);
  const auto found = ledger.Touch(kAll, {0, 1, "fill"}, true, ClockOf(0, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Conflict::Kind::kReuse);
  ledger.Touch(kAll, {1, 2, "sum"}, false, ClockOf(1, 2));
  ledger.Settle(kAll, ClockOf(1, 2));
  ledger.Allocate(kAll, 0, 1);
  EXPECT_FALSE(ledger.Touch(kAll, {0, 2, "fill"}, true, ClockOf(0, 2)));
}

TEST(AccessLedger, ABlocksFirstUseComesAfterItsHomeStreamsAllocation) {
  AccessLedger ledger;
  ledger.Allocate(kAll, 0, 7);
  const auto found = ledger.Touch(kAll, {1, 1, "copy"}, true, ClockOf(1, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, Conflict::Kind::kAllocation);
}

// Every access of each byte is kept, and compared with.
class PlainLedger {
 public:
  bool Touch(AddressRange bytes, const StreamAccess& access, bool is_write,
             const VectorClock& done) {
    bool conflicts = false;
    for (uintptr_t at = bytes.begin; at < bytes.end; ++at) {
      std::vector<std::pair<StreamAccess, bool>>& before = accesses_[at];
      if (is_write) {
        for (const auto& [other, was_write] : before) {
          conflicts = conflicts || !done.Covers(other.stream, other.time);
        }
        before.clear();
      } else {
        for (const auto& [other, was_write] : before) {
          conflicts = conflicts ||
                      (was_write && !done.Covers(other.stream, other.time));
        }
      }
      before.emplace_back(access, is_write);
    }
    return conflicts;
  }

 private:
  std::map<uintptr_t, std::vector<std::pair<StreamAccess, bool>>> accesses_;
};

TEST(AccessLedger, FindsWhatAListOfAllAccessesOfEachByteFinds) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t limit) { return random() % limit; };
    AccessLedger ledger;
    PlainLedger plain;
    std::vector<VectorClock> clocks(3);
    int conflicts = 0;
    for (int64_t time = 1; time <= 400; ++time) {
      const auto stream = static_cast<AcceleratorStream>(below(3));
      VectorClock& clock = clocks[static_cast<size_t>(stream)];
      clock.Advance(stream, time);
      if (below(3) == 0) clock.Join(clocks[below(3)]);
      const uintptr_t begin = kAll.begin + below(64);
      const AddressRange bytes{begin,
                               std::min(begin + 1 + below(16), kAll.end)};
      const bool is_write = below(2) == 0;
      const StreamAccess access{stream, time, "x"};
      const bool expected = plain.Touch(bytes, access, is_write, clock);
      EXPECT_EQ(ledger.Touch(bytes, access, is_write, clock).has_value(),
                expected)
          << time;
      conflicts += expected ? 1 : 0;
    }
    EXPECT_GT(conflicts, 0);
    EXPECT_LT(conflicts, 400);
  }
}

}  // namespace
}  // namespace terrace
