// How long a demand waits beside bulk moves of its direction, in virtual time.
#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_tier_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kBulk = 0;

class DeviceLatencyTest : public DeviceTransportTest,
                          public testing::WithParamInterface<IoClass> {};

TEST_P(DeviceLatencyTest, ADemandBesideBulkWaitsForThePiecesInTheStream) {
  PollByItself();
  std::minstd_rand random(7);
  std::vector<absl::Duration> waits;
  const absl::Time start = clock().Now();
  int64_t rounds = 0;
  Begin(kBulk, kDown, 0, 48 * kMiB, GetParam());
  for (uint64_t tag = 1; rounds < 8; ++tag) {
    const absl::Time begun = clock().Now();
    Begin(tag, kDown, 48 * kMiB, kMiB);
    ASSERT_TRUE(clock().RunUntil([&] { return ended_at_.contains(tag); }));
    waits.push_back(ended_at_[tag] - begun);
    if (ended_at_.contains(kBulk)) {  // another, with no time between
      ended_at_.erase(kBulk);
      ++rounds;
      Begin(kBulk, kDown, 0, 48 * kMiB, GetParam());
    }
    Pass(3 * kMiBTime +
         absl::Nanoseconds(static_cast<int64_t>(random() % 1'000'000)));
  }
  Finish();
  std::sort(waits.begin(), waits.end());
  ASSERT_GT(waits.size(), 20u);
  // Three pieces in the stream, and itself.
  EXPECT_LE(waits.back(), 4 * kMiBTime);
  EXPECT_GE(waits.front(), kMiBTime);
  EXPECT_GT(clock().Now(), start);
}

INSTANTIATE_TEST_SUITE_P(Bulk, DeviceLatencyTest,
                         testing::Values(IoClass::kWriteBack,
                                         IoClass::kPrefetch));

}  // namespace
}  // namespace terrace
