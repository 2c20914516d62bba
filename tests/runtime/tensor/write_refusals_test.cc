#include "runtime/tensor/write_refusals.h"

#include "gtest/gtest.h"
#include "tests/support/medium/tier_ids.h"

namespace terrace {
namespace {

TEST(WriteRefusalsTest, EachTierThatRefusedIsRemembered) {
  WriteRefusals refusals;
  EXPECT_EQ(refusals.count(), 0);
  refusals.Add(kDisk1, absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(refusals.Has(kDisk1));
  EXPECT_FALSE(refusals.Has(kDisk0));
  EXPECT_EQ(refusals.count(), 1);
  refusals.Forget();
  EXPECT_FALSE(refusals.Has(kDisk1));
  EXPECT_EQ(refusals.count(), 0);
}

TEST(WriteRefusalsTest, AnErrorIsOneOnceItHasGivenUp) {
  WriteRefusals refusals;
  refusals.Add(kDisk0, absl::ResourceExhaustedError("full"));
  refusals.Add(kDisk1, absl::UnavailableError("gone"));
  EXPECT_TRUE(refusals.error().ok());
  refusals.GiveUp();
  EXPECT_TRUE(refusals.gave_up());
  EXPECT_EQ(refusals.error(), absl::UnavailableError("gone"));
  refusals.Forget();  // which tiers to ask, not what became of it
  EXPECT_TRUE(refusals.gave_up());
  refusals.TryAgain();
  EXPECT_FALSE(refusals.gave_up());
  EXPECT_TRUE(refusals.error().ok());
}

TEST(WriteRefusalsTest, ItMayGiveUpForAReasonOfNoTier) {
  WriteRefusals refusals;
  refusals.GiveUp(absl::DeadlineExceededError("late"));
  EXPECT_EQ(refusals.error(), absl::DeadlineExceededError("late"));
  EXPECT_EQ(refusals.count(), 0);
}

}  // namespace
}  // namespace terrace
