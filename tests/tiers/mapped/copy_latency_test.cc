// How long a demand waits beside bulk moves, in virtual time: one worker, and
// a medium whose pieces take as long as their bytes.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/vector_medium.h"
#include "tests/tiers/mapped/copy_fixture.h"
#include "tiers/copy_transport.h"

namespace terrace {
namespace {

constexpr int64_t kBulkBytes = 1 << 30;
constexpr absl::Duration kPieceTime = absl::Microseconds(100);
constexpr uint64_t kBulk = 1;

class CopyLatencyTest : public testing::TestWithParam<IoClass> {
 protected:
  CopyLatencyTest() {
    timed_.OnCall([this](const MediumCall& call) {
      Pass(kPieceTime * (static_cast<double>(call.size_bytes) / kMiB));
    });
  }

  // A demand of 1 MiB comes at `next_`, while a piece is under way, too.
  void Pass(absl::Duration time) {
    const absl::Time end = clock_.Now() + time;
    while (next_ <= end) {
      clock_.JumpTo(std::max(clock_.Now(), next_));
      SendDemand();
    }
    clock_.JumpTo(std::max(clock_.Now(), end));
  }
  void SendDemand() {
    const uint64_t tag = kBulk + 1 + begun_.size();
    begun_[tag] = clock_.Now();
    // No bytes move: any memory does.
    transport_.Begin(
        MoveOf(tag, {kFirst, kDramTier}, 0, kMiB, bytes_, IoClass::kDemand));
    next_ = clock_.Now() + 3 * kPieceTime +
            absl::Nanoseconds(static_cast<int64_t>(random_() % 1'000'000));
  }
  bool Poll() {
    std::vector<Moved> moved;
    transport_.Poll(&moved);
    bool bulk_ended = false;
    for (const Moved& each : moved) {
      EXPECT_TRUE(each.status.ok()) << each.status;
      if (each.tag == kBulk) {
        bulk_ended = true;
      } else {
        waits_.push_back(clock_.Now() - begun_.at(each.tag));
      }
    }
    return bulk_ended;
  }

  VirtualClock clock_;
  std::minstd_rand random_{7};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1);
  EmptyMedium medium_{"empty", kBulkBytes};
  FaultMedium timed_{medium_};
  InlineExecutor executor_{1};
  CopyTransport transport_{{{kFirst, &timed_}}, executor_, clock_, [] {}};
  absl::Time next_ = clock_.Now();
  std::map<uint64_t, absl::Time> begun_;
  std::vector<absl::Duration> waits_;
};

TEST_P(CopyLatencyTest, ADemandBesideAGibibyteWaitsForOnePieceAndItself) {
  const absl::Time start = clock_.Now();
  transport_.Begin(
      MoveOf(kBulk, {kDramTier, kFirst}, 0, kBulkBytes, bytes_, GetParam()));
  bool bulk_ended = false;
  while (!bulk_ended && executor_.RunOne()) bulk_ended = Poll();
  EXPECT_TRUE(bulk_ended);
  const absl::Duration took = clock_.Now() - start;
  next_ = absl::InfiniteFuture();
  executor_.RunAll();
  Poll();
  ASSERT_EQ(waits_.size(), begun_.size());
  ASSERT_GT(waits_.size(), 100u);
  std::sort(waits_.begin(), waits_.end());
  EXPECT_LE(waits_[waits_.size() * 99 / 100], 2 * kPieceTime);
  EXPECT_LE(waits_.back(), 2 * kPieceTime);
  EXPECT_GE(waits_.front(), kPieceTime);
  // Bulk and demands are all that took time, and the worker was never idle.
  EXPECT_LE(took, kPieceTime * static_cast<double>(1024 + waits_.size()));
  EXPECT_GE(took, kPieceTime * 1024);
}

INSTANTIATE_TEST_SUITE_P(Bulk, CopyLatencyTest,
                         testing::Values(IoClass::kWriteBack,
                                         IoClass::kPrefetch));

}  // namespace
}  // namespace terrace
