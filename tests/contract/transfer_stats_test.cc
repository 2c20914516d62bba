// stats.h on transfers that did not go straight through: continued, repeated,
// late.
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 60 << 10;  // with its header 64 KiB, one request

class TransferStats : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped()) return;
    TestRuntimeOptions options;
    options.prefetch = false;
    Make(32, options);  // four tensors' places
    queue_ = world().OpenQueue(kSize, 4);
    tensors_ = world().RegisterMany(8, kSize);
  }
  void TearDown() override { queue_.reset(); }

  TierStats path() { return stats().paths()[0]; }
  // Fills the window with other tensors, so that the first one has to go to
  // its path and come back from there.
  void Displace() {
    std::vector<Want> others;
    for (size_t i = 4; i < 8; ++i) {
      others.push_back({tensors_[i], Access::kOverwrite});
    }
    ASSERT_TRUE(queue_->Push(others, 0, Soon()).ok());
    const absl::StatusOr<Ready> ready = queue_->Next(Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
  }
  // Writes the first tensor under `fault`, from the first write on, `times`.
  void WriteUnder(const Fault& fault, int64_t times) {
    world().faults().FailCall(1, fault, CallFilter::kWrites, times);
    world().Fill(*queue_, tensors_[0], 7);
    Displace();
    world().faults().Clear();
  }
  // Reads it back under `fault`.
  bool ReadUnder(const Fault& fault, int64_t times) {
    world().Fill(*queue_, tensors_[0], 7);
    Displace();
    world().faults().FailCall(1, fault, CallFilter::kReads, times);
    const bool holds = world().Holds(*queue_, tensors_[0], 7);
    world().faults().Clear();
    return holds;
  }

  std::unique_ptr<RequestQueue> queue_;
  std::vector<TensorId> tensors_;
};
INSTANTIATE_TEST_SUITE_P(Worlds, TransferStats, testing::ValuesIn(kDiskWorlds),
                         WorldParamName);

TEST_P(TransferStats, NothingIsCountedOfWhatGoesStraightThrough) {
  EXPECT_TRUE(ReadUnder({.kind = FaultKind::kNone}, 1));
  EXPECT_EQ(path().traffic.continuations, 0);
  EXPECT_EQ(path().traffic.retries, 0);
  EXPECT_EQ(path().traffic.requests_read, 1);
  EXPECT_EQ(path().traffic.bytes_read, 64 << 10);
}

TEST_P(TransferStats, AShortReadIsOneContinuation) {
  EXPECT_TRUE(ReadUnder({.kind = FaultKind::kShort}, 1));
  EXPECT_EQ(path().traffic.continuations, 1);
  EXPECT_EQ(path().traffic.retries, 0);
  EXPECT_EQ(path().traffic.requests_read, 2);
  EXPECT_EQ(path().traffic.bytes_read, 64 << 10);
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

TEST_P(TransferStats, AShortWriteIsOneContinuation) {
  WriteUnder({.kind = FaultKind::kShort}, 1);
  EXPECT_EQ(path().traffic.continuations, 1);
  EXPECT_EQ(path().traffic.retries, 0);
  EXPECT_TRUE(world().Holds(*queue_, tensors_[0], 7));
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

TEST_P(TransferStats, EachTransientErrorIsOneRetry) {
  EXPECT_TRUE(ReadUnder({.kind = FaultKind::kError, .error = EAGAIN}, 3));
  EXPECT_EQ(path().traffic.retries, 3);
  WriteUnder({.kind = FaultKind::kError, .error = EINTR}, 2);
  EXPECT_EQ(path().traffic.retries, 3 + 2);
  EXPECT_EQ(path().traffic.continuations, 0);
  EXPECT_TRUE(world().Holds(*queue_, tensors_[0], 7));
  EXPECT_FALSE(path().degraded);
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

TEST_P(TransferStats, ARetryThatIsInVainCountsAndTheErrorIsReported) {
  // EIO of a read is tried twice more.
  EXPECT_TRUE(ReadUnder({.kind = FaultKind::kError, .error = EIO}, 2));
  EXPECT_EQ(path().traffic.retries, 2);
  Displace();
  world().faults().FailAll({.kind = FaultKind::kError, .error = EIO},
                           CallFilter::kReads);
  const absl::StatusOr<Pin> pin =
      world().Take(*queue_, tensors_[0], Access::kRead);
  EXPECT_FALSE(pin.ok());
  EXPECT_EQ(path().traffic.retries, 2 + 2);
  EXPECT_EQ(stats().first_error, pin.status());
}

// A device that reads 1 MiB/s, in virtual time.
class PacedStats : public testing::Test {
 protected:
  PacedStats()
      : world_(TestWorld::kVirtual,
               {.budget_bytes = 64 << 10,
                .prefetch = false,
                .pace = {.read_bytes_per_second = 1 << 20}}),
        queue_(world_.OpenQueue(kSize, 1)),
        tensors_(world_.RegisterMany(2, kSize)) {
    world_.Fill(*queue_, tensors_[0], 3);
    world_.Fill(*queue_, tensors_[1], 4);
  }

  Stats stats() { return world_.runtime().GetStats(); }
  // Takes 62.5 ms; the time stands still from then on for `stall`.
  void Read(TensorId tensor, absl::Duration stall) {
    ASSERT_TRUE(queue_->Push({{tensor, Access::kRead}}, 0, world_.Soon()).ok());
    world_.virtual_clock().Pump();
    world_.virtual_clock().JumpTo(world_.Now() + absl::Microseconds(62500) +
                                  stall);
    const absl::StatusOr<Ready> ready = queue_->Next(world_.Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_TRUE(ready->pins.ok()) << ready->pins.status();
  }

  TestRuntime world_;
  std::unique_ptr<RequestQueue> queue_;
  std::vector<TensorId> tensors_;
};

TEST_F(PacedStats, WritesOfAnUnpacedDirectionAreNotCounted) {
  EXPECT_GT(stats().paths()[0].traffic.requests_written, 0);
  EXPECT_EQ(stats().paced_completions, 0);
  EXPECT_EQ(stats().late_completions, 0);
}

TEST_F(PacedStats, WhatIsSeenWithinAMillisecondIsNotLate) {
  Read(tensors_[0], absl::Microseconds(900));
  EXPECT_EQ(stats().paths()[0].traffic.requests_read, 1);
  EXPECT_EQ(stats().paced_completions, 1);
  EXPECT_EQ(stats().late_completions, 0);
}

TEST_F(PacedStats, WhatIsSeenLaterIsLateAndStaysCounted) {
  Read(tensors_[0], absl::Milliseconds(2));
  EXPECT_EQ(stats().late_completions, 1);
  Read(tensors_[1], absl::ZeroDuration());
  EXPECT_EQ(stats().paced_completions, 2);
  EXPECT_EQ(stats().late_completions, 1);
  queue_.reset();
  EXPECT_TRUE(world_.runtime().Close(world_.Soon()).ok());
  EXPECT_EQ(stats().late_completions, 1);
}

}  // namespace
}  // namespace terrace
