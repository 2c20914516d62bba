// A daemon that is killed while a disk holds what it had begun: the next one
// is started at once, waits for the disk, and goes on.
#include <signal.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/threads/own_thread.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/support/fuse/fuse_mount.h"

namespace terrace {
namespace {

constexpr int64_t kHeldMemory = 512 << 10;
constexpr int64_t kHeldTensor = 100 << 10;
constexpr int kHeldTensors = 10;
constexpr int kRounds = 4;

uint8_t SeedOf(int round, int tensor) {
  return static_cast<uint8_t>(kHeldTensors * round + tensor);
}

class HeldDiskTest : public testing::TestWithParam<FuseCall> {
 protected:
  void SetUp() override {
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
    RunningDaemon::Setting setting;
    setting.keeps = true;
    setting.tiers =
        absl::StrCat("'dram=8MiB', 'nvme:", mount_.path(), "=8MiB'");
    daemon_ = std::make_unique<RunningDaemon>("", setting);
    ASSERT_TRUE(daemon_->Serves());
  }

  // Each tensor is read and written in turn, far more than memory has room for.
  static void Train(Runtime& job, const std::vector<TensorId>& tensors) {
    for (int round = 1; round <= kRounds; ++round) {
      for (int i = 0; i < kHeldTensors; ++i) {
        auto pin = job.Acquire(tensors[static_cast<size_t>(i)], Access::kUpdate,
                               absl::Now() + absl::Seconds(100));
        ASSERT_TRUE(pin.ok()) << pin.status();
        EXPECT_TRUE(HasPattern(pin->data(), SeedOf(round - 1, i)))
            << "tensor " << i << ", round " << round;
        WritePattern(pin->data(), SeedOf(round, i));
      }
    }
  }

  FuseMount mount_;
  std::unique_ptr<RunningDaemon> daemon_;
};

TEST_P(HeldDiskTest, TheNextOneWaitsForIt) {
  const auto job = *ConnectAs(*daemon_, kHeldMemory);
  std::vector<TensorId> tensors;
  for (int i = 0; i < kHeldTensors; ++i) {
    tensors.push_back(*RegisterOf(*job, absl::StrCat("t", i), kHeldTensor));
    ASSERT_TRUE(FillOf(*job, tensors.back(), SeedOf(0, i)));
  }
  mount_.Clear();
  mount_.Arm({.call = GetParam(), .first = 3, .kind = FuseFault::Kind::kHold});
  std::thread trains = StartThread("trains", [&] { Train(*job, tensors); });
  EXPECT_TRUE(
      daemon_->WaitUntil([this] { return mount_.counts().faults > 0; }));
  daemon_->Kill(SIGKILL);
  daemon_->StartBeside();
  // The killed one is there still, with all that it had locked.
  EXPECT_FALSE(daemon_->ServesWithin(absl::Milliseconds(500)));
  EXPECT_TRUE(daemon_->running()) << daemon_->Wait().errors;
  mount_.Clear();
  EXPECT_TRUE(daemon_->Serves());
  trains.join();
  for (int i = 0; i < kHeldTensors; ++i) {
    EXPECT_TRUE(
        Holds(*job, tensors[static_cast<size_t>(i)], SeedOf(kRounds, i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, HeldDiskTest,
                         testing::Values(FuseCall::kRead, FuseCall::kWrite),
                         [](const auto& each) {
                           return each.param == FuseCall::kRead ? "Reads"
                                                                : "Writes";
                         });

}  // namespace
}  // namespace terrace
