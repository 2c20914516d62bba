// The whole runtime on a file system that fails, and on one that stops.
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/fuse/fuse_mount.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

using Kind = FuseFault::Kind;
using testing::HasSubstr;

constexpr int64_t kTensorBytes = 1 << 20;
constexpr int kTensors = 6;
// The file system's server is a process of its own: more than a busy machine
// keeps it waiting.
constexpr absl::Duration kTimeout = absl::Seconds(3);
// What ends by that timeout ends long before the patience of a request.
constexpr absl::Duration kInTime = absl::Seconds(20);

class FuseRuntimeTest : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
    Options options;
    options.host_budget_bytes = 3 << 20;  // a window of two, and nothing beside
    options.paths = {mount_.path()};
    options.engine = GetParam();
    options.threads = 1;
    options.huge_pages = HugePages::kOff;
    options.prefetch = false;
    options.io_timeout = kTimeout;
    auto runtime = Runtime::Create(options);
    if (absl::IsUnavailable(runtime.status())) {
      GTEST_SKIP() << runtime.status();
    }
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    for (int i = 0; i < kTensors; ++i) {
      TensorSpec spec;
      spec.name = "tensor " + std::to_string(i);
      spec.size_bytes = kTensorBytes;
      const auto tensor = runtime_->Register(spec);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      tensors_.push_back(*tensor);
    }
    auto queue = runtime_->OpenQueue(kTensorBytes, 2, Soon());
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    for (int i = 0; i < kTensors; ++i) Fill(i);
  }

  static Time Soon() { return absl::Now() + absl::Seconds(30); }

  absl::StatusOr<Pin> Take(int i, Access access) {
    const absl::Status pushed =
        queue_->Push({{tensors_[i], access}}, 0, Soon());
    if (!pushed.ok()) return pushed;
    absl::StatusOr<Ready> ready = queue_->Next(Soon());
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    return std::move(ready->pins->front());
  }
  void Fill(int i) {
    absl::StatusOr<Pin> pin = Take(i, Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    WritePattern(pin->data(), static_cast<uint8_t>(i));
  }
  bool Holds(int i) {
    absl::StatusOr<Pin> pin = Take(i, Access::kRead);
    EXPECT_TRUE(pin.ok()) << pin.status();
    return pin.ok() && HasPattern(pin->data(), static_cast<uint8_t>(i));
  }

  // Once the transfers that were held have ended, which they do by themselves.
  bool HoldsAtLast(int i) {
    const absl::Time end = SystemClock().Now() + absl::Seconds(30);
    while (absl::IsDeadlineExceeded(Take(i, Access::kRead).status()) &&
           SystemClock().Now() < end) {
    }
    return Holds(i);
  }

  FuseMount mount_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<TensorId> tensors_;
  std::unique_ptr<RequestQueue> queue_;
};
INSTANTIATE_TEST_SUITE_P(Engines, FuseRuntimeTest,
                         testing::Values(EngineKind::kUring,
                                         EngineKind::kThreads),
                         [](const auto& kind) {
                           return kind.param == EngineKind::kUring ? "io_uring"
                                                                   : "threads";
                         });

// There a ring may go on at a wrong offset after a short reply.
TEST(FuseEngine, AutoTakesThreadsAndSaysWhyAndANamedOneIsFollowed) {
  const FuseMount mount;
  if (!mount.ok()) GTEST_SKIP() << mount.reason();
  const TemporaryDirectory elsewhere;
  Options options;
  options.host_budget_bytes = 1 << 20;
  options.huge_pages = HugePages::kOff;
  options.threads = 1;
  options.paths = {elsewhere.path(), mount.path()};
  const auto automatic = Runtime::Create(options);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  const Stats stats = (*automatic)->GetStats();
  EXPECT_EQ(stats.engine, "threads");
  EXPECT_THAT(stats.engine_reason,
              HasSubstr("instead of io_uring: path 1 is on FUSE"));
  options.engine = EngineKind::kUring;
  const auto named = Runtime::Create(options);
  if (absl::IsUnavailable(named.status())) GTEST_SKIP() << named.status();
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ((*named)->GetStats().engine, "io_uring");
}

TEST_P(FuseRuntimeTest, WhatWasWrittenIsReadThroughHealedFaults) {
  mount_.Clear();
  mount_.Arm({FuseCall::kRead, 2, 1, Kind::kError, EIO});
  mount_.Arm({FuseCall::kRead, 5, 2, Kind::kShort, 8192});
  mount_.Arm({FuseCall::kRead, 9, 1, Kind::kDelay, 50});
  for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(Holds(i)) << i;
  EXPECT_EQ(mount_.counts().faults, 4);
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
}

TEST_P(FuseRuntimeTest, AFileSystemThatIsFullIsToldWhenATensorIsRegistered) {
  mount_.Arm({.call = FuseCall::kGrow, .kind = Kind::kError, .value = ENOSPC});
  TensorSpec spec;
  spec.name = "one too many";
  spec.size_bytes = 8 << 20;
  const absl::Status refused = runtime_->Register(spec).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              testing::AllOf(HasSubstr(mount_.path()), HasSubstr("ENOSPC")));
  for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(Holds(i)) << i;
  mount_.Clear();
  const absl::Status again = runtime_->Register(spec).status();
  EXPECT_TRUE(again.ok()) << again << ": there is room again";
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
}

// No call waits for ever, neither a read nor a close; and when the server is
// gone the file system can be unmounted.
TEST_P(FuseRuntimeTest, OneThatStopsAnsweringIsNamedAndLeftBehindInTime) {
  mount_.Stop();
  const absl::Time start = SystemClock().Now();
  // Two are in the window at most, and clean or being written.
  absl::Status failure;
  for (int i = 0; i < kTensors && failure.ok(); ++i) {
    failure = Take(i, Access::kRead).status();
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(failure)) << failure;
  EXPECT_THAT(failure.ToString(),
              testing::AllOf(HasSubstr(mount_.path()), HasSubstr("offset"),
                             HasSubstr("no answer for "),
                             HasSubstr("bytes in flight")));
  EXPECT_LT(SystemClock().Now() - start, kInTime);
  queue_.reset();
  const absl::Time closing = SystemClock().Now();
  const absl::Status closed =
      runtime_->Close(absl::Now() + absl::Milliseconds(500));
  EXPECT_TRUE(absl::IsDeadlineExceeded(closed)) << closed;
  EXPECT_THAT(closed.ToString(), HasSubstr(mount_.path()));
  EXPECT_GT(runtime_->GetStats().host.leaked_bytes, 0);
  runtime_.reset();
  EXPECT_LT(SystemClock().Now() - closing, kInTime);
}

TEST_P(FuseRuntimeTest, OneThatGoesOnInTimeLosesNothing) {
  mount_.Arm({FuseCall::kRead, 1, 1, Kind::kHold, 0});
  absl::Status late;
  for (int i = 0; i < kTensors && late.ok(); ++i) {
    late = Take(i, Access::kRead).status();
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  mount_.Clear();
  for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(Holds(i)) << i;
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
  EXPECT_EQ(runtime_->GetStats().host.leaked_bytes, 0);
}

TEST_P(FuseRuntimeTest, AWriteBackThatHangsIsToldAndNothingIsLost) {
  mount_.Arm({FuseCall::kWrite, 1, INT64_MAX / 2, Kind::kHold, 0});
  absl::Status late;
  for (int i = 0; i < kTensors && late.ok(); ++i) {
    absl::StatusOr<Pin> pin = Take(i, Access::kUpdate);
    late = pin.status();
    if (late.ok()) WritePattern(pin->data(), static_cast<uint8_t>(i));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(late.ToString(), HasSubstr(mount_.path()));
  mount_.Clear();
  for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(HoldsAtLast(i)) << i;
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
}

TEST_P(FuseRuntimeTest, AFileThatHangsAsItGrowsIsTold) {
  mount_.Arm({FuseCall::kGrow, 1, 1, Kind::kHold, 0});
  TensorSpec spec;
  spec.name = "one more";
  spec.size_bytes = 8 << 20;
  const absl::Time start = SystemClock().Now();
  const absl::Status late = runtime_->Register(spec).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(late.ToString(), HasSubstr(mount_.path()));
  EXPECT_LT(SystemClock().Now() - start, kInTime);
  mount_.Clear();
  queue_.reset();
  EXPECT_TRUE(runtime_->Close(Soon()).ok());
}

TEST_P(FuseRuntimeTest, AServerThatDiesLeavesNobodyWaiting) {
  mount_.Kill();
  absl::Status failure;
  for (int i = 0; i < kTensors && failure.ok(); ++i) {
    failure = Take(i, Access::kRead).status();
  }
  EXPECT_FALSE(failure.ok());
  EXPECT_THAT(failure.ToString(), HasSubstr(mount_.path()));
  queue_.reset();
  const absl::Status closed = runtime_->Close(Soon());
  EXPECT_FALSE(closed.ok()) << "its files cannot be removed";
  EXPECT_THAT(closed.ToString(), HasSubstr("ENOTCONN"));
}

}  // namespace
}  // namespace terrace
