#include "base/watch.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kPatience = absl::Seconds(8);

TEST(Watch, LooksAreDueEightTimesInTheLeastPatience) {
  Watch watch;
  watch.Begin(kStart);
  EXPECT_EQ(watch.next_look(), absl::InfiniteFuture());
  watch.Expect(2 * kPatience);
  EXPECT_EQ(watch.next_look(), kStart + absl::Seconds(2));
  watch.Expect(kPatience);
  watch.Expect(absl::InfiniteDuration());
  EXPECT_EQ(watch.next_look(), kStart + absl::Seconds(1));
  watch.Look(kStart + absl::Seconds(1));
  EXPECT_EQ(watch.next_look(), kStart + absl::Seconds(2));
}

TEST(Watch, WhoLooksInTimeMissesNothing) {
  Watch watch;
  watch.Expect(kPatience);
  watch.Begin(kStart);
  for (int i = 1; i <= 100; ++i) watch.Look(kStart + i * kPatience / 2);
  EXPECT_EQ(watch.since(), absl::InfinitePast());
}

TEST(Watch, AfterAGapSilenceCountsFromItsEnd) {
  Watch watch;
  watch.Expect(kPatience);
  watch.Begin(kStart);
  const absl::Time end = kStart + kPatience / 2 + absl::Nanoseconds(1);
  watch.Look(end);
  EXPECT_EQ(watch.since(), end);
  watch.Look(end + absl::Seconds(1));
  EXPECT_EQ(watch.since(), end);
}

TEST(Watch, WhereNothingWasAwaitedThereIsNoGap) {
  Watch watch;
  watch.Expect(kPatience);
  watch.Begin(kStart);
  watch.Begin(kStart + absl::Hours(1));
  watch.Look(kStart + absl::Hours(1) + absl::Seconds(1));
  EXPECT_EQ(watch.since(), absl::InfinitePast());
}

// Else every look would be too late, and nothing ever late.
TEST(Watch, ATinyPatienceIsLookedAtOnceAMillisecond) {
  Watch watch;
  watch.Expect(absl::Nanoseconds(1));
  watch.Begin(kStart);
  EXPECT_EQ(watch.next_look(), kStart + absl::Milliseconds(1));
}

}  // namespace
}  // namespace terrace
