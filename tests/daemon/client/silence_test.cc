// How long a daemon may say nothing, by a clock that the test turns.
#include "daemon/client/silence.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kNone;

absl::Time After(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(SilenceTest, ItIsAskedAfterAQuarterAndLastsTheRest) {
  Silence silence(kStart, absl::Seconds(60));
  EXPECT_EQ(silence.NextLook(kNone), After(15));
  EXPECT_FALSE(silence.IsToBeAsked(After(14.9)));
  EXPECT_FALSE(silence.HasLasted(After(1000), kNone));  // nobody has asked
  EXPECT_TRUE(silence.IsToBeAsked(After(15)));
  silence.OnAsked(After(15));
  EXPECT_FALSE(silence.IsToBeAsked(After(30)));
  EXPECT_EQ(silence.NextLook(kNone), After(60));
  EXPECT_FALSE(silence.HasLasted(After(59.9), kNone));
  EXPECT_TRUE(silence.HasLasted(After(60), kNone));
}

// Who was stopped asks late, and waits from there on.
TEST(SilenceTest, PatienceCountsFromTheQuestion) {
  Silence silence(kStart, absl::Seconds(4));
  EXPECT_TRUE(silence.IsToBeAsked(After(3600)));
  silence.OnAsked(After(3600));
  EXPECT_FALSE(silence.HasLasted(After(3602.9), kNone));
  EXPECT_TRUE(silence.HasLasted(After(3603), kNone));
}

TEST(SilenceTest, WhatIsHeardBeginsItAnew) {
  Silence silence(kStart, absl::Seconds(4));
  silence.OnAsked(After(1));
  silence.OnHeard(After(3));
  EXPECT_FALSE(silence.HasLasted(After(100), kNone));
  EXPECT_EQ(silence.NextLook(kNone), After(4));
}

TEST(SilenceTest, WhatTakesLongByItselfIsAllowedFor) {
  Silence silence(kStart, absl::Seconds(4));
  silence.OnAsked(After(1));
  EXPECT_FALSE(silence.HasLasted(After(13.9), absl::Seconds(10)));
  EXPECT_TRUE(silence.HasLasted(After(14), absl::Seconds(10)));
  EXPECT_EQ(silence.NextLook(absl::Seconds(10)), After(14));
}

}  // namespace
}  // namespace terrace
