// With everything open and nothing to do no thread wakes; nor does one where a
// step waits for what another customer has.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/threads/own_thread.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/runtime/quiet_threads.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

Time Soon() { return absl::Now() + absl::Seconds(60); }

// The state of 4 MiB of parameters, on two disks.
class IdleTest : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    Options options;
    options.host_budget_bytes = 4 << 20;
    options.paths = {one_.path(), other_.path()};
    options.threads = 2;
    options.huge_pages = HugePages::kOff;
    options.engine = GetParam();
    auto runtime = Runtime::Create(options);
    if (!runtime.ok() && GetParam() == EngineKind::kUring) {
      GTEST_SKIP() << runtime.status();
    }
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    OptimizerOptions small;
    small.chunk_bytes = 256 << 10;
    auto optimizer =
        OffloadedOptimizer::Create(*runtime_, model_.specs(), small);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    for (int64_t step = 1; step <= 2; ++step) {
      model_.DrawGradients(step);
      const absl::Status status = optimizer_->Step({}, model_.data(), Soon());
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names = {"terrace-mover", "terrace-exec",
                                      "terrace-files"};
    if (GetParam() == EngineKind::kThreads) names.push_back("terrace-io");
    return names;
  }

  TemporaryDirectory one_, other_;
  Model model_ = Model::Of({{"weights", DType::kFloat32, 1 << 20}}, 7);
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST_P(IdleTest, NothingWakesWhereNothingIsToBeDone) { ExpectQuiet(Names()); }

// The thread of the step has a name of ours, and waits for a chunk.
TEST_P(IdleTest, NothingWakesWhileAStepWaits) {
  absl::StatusOr<Pin> held =
      runtime_->Acquire(TensorId{0}, Access::kUpdate, Soon());
  ASSERT_TRUE(held.ok()) << held.status();
  model_.DrawGradients(3);
  auto step = optimizer_->StartLate({}, model_.data(), {}, Soon());
  ASSERT_TRUE(step.ok()) << step.status();
  std::thread drives = StartThread("terrace-step", [&] {
    while (!(*step)->Advance()) (*step)->Wait(absl::InfiniteFuture());
  });
  std::vector<std::string> names = Names();
  names.push_back("terrace-step");
  ExpectQuiet(names);
  held->ReleaseUnchanged();
  drives.join();
  EXPECT_TRUE((*step)->result().ok()) << (*step)->result();
}

// Whoever wants something says so and wakes the step; the thread that drives
// the step looks before each wait, and so misses none.
TEST_P(IdleTest, AStepThatWaitsIsWoken) {
  absl::StatusOr<Pin> held =
      runtime_->Acquire(TensorId{0}, Access::kUpdate, Soon());
  ASSERT_TRUE(held.ok()) << held.status();
  model_.DrawGradients(3);
  auto step = optimizer_->StartLate({}, model_.data(), {}, Soon());
  ASSERT_TRUE(step.ok()) << step.status();
  for (int round = 1; round <= 200; ++round) {
    std::atomic<bool> is_wanted = false;
    std::thread wants([&] {
      is_wanted = true;
      (*step)->Wake();
    });
    while (true) {
      ASSERT_FALSE((*step)->Advance());
      if (is_wanted) break;
      (*step)->Wait(absl::InfiniteFuture());
    }
    wants.join();
  }
  held->ReleaseUnchanged();
  while (!(*step)->Advance()) (*step)->Wait(absl::InfiniteFuture());
  EXPECT_TRUE((*step)->result().ok()) << (*step)->result();
}

INSTANTIATE_TEST_SUITE_P(Engines, IdleTest,
                         testing::Values(EngineKind::kUring,
                                         EngineKind::kThreads),
                         [](const auto& engine) {
                           return engine.param == EngineKind::kUring
                                      ? "Uring"
                                      : "Threads";
                         });

}  // namespace
}  // namespace terrace
