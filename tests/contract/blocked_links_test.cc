// LinkStats::seconds_blocked beside what a customer measures itself, by the
// clock around its own calls of Next: over a device of known rates, in virtual
// time, so to the nanosecond.
#include <memory>
#include <vector>

#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kBlockedSize = 60
                                 << 10;  // with its header 64 KiB: 62.5 ms up
constexpr double kNanosecond = 1e-9;

class BlockedLinks : public testing::TestWithParam<TestWorld> {
 protected:
  static constexpr int kTensors = 8;

  void SetUp() override {
    const absl::Status supported = TestRuntime::Supports(GetParam());
    if (!supported.ok()) GTEST_SKIP() << supported;
    world_ = std::make_unique<TestRuntime>(
        GetParam(),
        TestRuntimeOptions{.budget_bytes = 128 << 10,
                           .pace = {.read_bytes_per_second = 1 << 20,
                                    .write_bytes_per_second = 2 << 20}});
  }

  TestRuntime& world() { return *world_; }
  Stats stats() { return world().runtime().GetStats(); }
  // Of all links of that direction, from memory or to it.
  double Blocked(bool down) {
    const Stats stats = this->stats();
    double sum = 0;
    for (const LinkStats& link : stats.links) {
      if ((link.from == "dram") == down) sum += link.seconds_blocked;
    }
    return sum;
  }
  // Its wait is measured, by its cause; `compute` passes while it is held.
  void TakeOne(RequestQueue& queue, absl::Duration compute) {
    const absl::Time begin = world().Now();
    absl::StatusOr<Ready> ready = queue.Next(world().Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    const double seconds = absl::ToDoubleSeconds(world().Now() - begin);
    (ready->cause == WaitCause::kRead ? read_ : written_) += seconds;
    if (ready->cause == WaitCause::kNone) {
      EXPECT_EQ(seconds, 0);
    }
    world().virtual_clock().RunUntil([] { return false; },
                                     world().Now() + compute);
    ready->pins->clear();
  }

  std::unique_ptr<TestRuntime> world_;
  double read_ = 0;
  double written_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, BlockedLinks,
                         testing::Values(TestWorld::kVirtual,
                                         TestWorld::kThreeVirtual,
                                         TestWorld::kFourVirtual),
                         WorldParamName);

TEST_P(BlockedLinks, OneRequestAtATimeCountsAsItsCustomerMeasures) {
  const auto queue = world().OpenQueue(kBlockedSize, 1);
  const std::vector<TensorId> tensors =
      world().RegisterMany(kTensors, kBlockedSize);
  const auto access = [](int round) {
    return round == 0   ? Access::kOverwrite
           : round == 1 ? Access::kRead
                        : Access::kUpdate;
  };
  for (int round = 0; round < 4; ++round) {
    for (const TensorId tensor : tensors) {
      ASSERT_TRUE(
          queue->Push({{tensor, access(round)}}, 0, world().Soon()).ok());
      TakeOne(*queue, absl::Milliseconds(7));
    }
    EXPECT_NEAR(Blocked(/*down=*/false), read_, kNanosecond);
    EXPECT_NEAR(Blocked(/*down=*/true), written_, kNanosecond);
  }
  EXPECT_GT(read_, kTensors * 0.0625);
  EXPECT_GT(written_, 0.03125);
}

// As an optimizer does: what comes next is fetched while one is computed on.
TEST_P(BlockedLinks, WhatIsFetchedBehindAComputationCountsForTheRest) {
  const auto queue = world().OpenQueue(kBlockedSize, 2);
  const std::vector<TensorId> tensors =
      world().RegisterMany(kTensors, kBlockedSize);
  for (const TensorId tensor : tensors) world().Fill(*queue, tensor, 1);
  ASSERT_TRUE(world().WaitUntil([&] { return stats().bytes_written() > 0; }));
  const double before = Blocked(/*down=*/false);
  const double before_written = Blocked(/*down=*/true);
  for (int round = 0; round < 3; ++round) {
    for (const TensorId tensor : tensors) {
      ASSERT_TRUE(
          queue->Push({{tensor, Access::kRead}}, 0, world().Soon()).ok());
    }
    for (int i = 0; i < kTensors; ++i) TakeOne(*queue, absl::Milliseconds(20));
  }
  EXPECT_NEAR(Blocked(/*down=*/false) - before, read_, kNanosecond);
  EXPECT_NEAR(Blocked(/*down=*/true) - before_written, written_, kNanosecond);
  EXPECT_GT(read_, 0);
}

}  // namespace
}  // namespace terrace
