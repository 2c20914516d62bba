// Far and persistent memory of jobs whose daemon is killed, and followed by
// another.
#include <signal.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "tests/daemon/server/hostile/played_process.h"
#include "tests/daemon/server/media/media_fixture.h"

namespace terrace {
namespace {

class KeptMediaTest : public MediaTest {};

TEST_P(KeptMediaTest, WhatIsThereOutlivesTheDaemon) {
  const auto daemon = StartWith("", "", /*keeps=*/true);
  auto job = ConnectAs(*daemon, kMemory, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  CheckedTensors tensors(**job, 1);
  tensors.RegisterAll();
  tensors.WriteAll();
  for (int round = 0; round < 3; ++round) {
    daemon->Kill(SIGKILL);
    daemon->Wait();
    daemon->Start();
    ASSERT_TRUE(daemon->Serves());
    EXPECT_EQ(Used(*daemon), kTensors * kMib);
    tensors.CheckAll();
    tensors.WriteSome();
    tensors.CheckAll();
  }
  // It grows on.
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(tensors.Register().ok());
  tensors.WriteAll();
  tensors.CheckAll();
  EXPECT_GE(Used(*daemon), (kTensors + 8) * kMib);
  EXPECT_TRUE((*job)->Close(Later()).ok());
  job->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 0; }));
  EXPECT_TRUE(daemon->WaitUntil([&] { return daemon->Kept().empty(); }));
  EXPECT_EQ(daemon->End().exit_code, 0);
  EXPECT_TRUE(IsEmpty());
}

// Growth, copies up and down.
TEST_P(KeptMediaTest, WhateverIsUnderWayAtAKillNoByteIsLost) {
  const auto daemon = StartWith("", "", /*keeps=*/true);
  auto job = ConnectAs(*daemon, kMemory, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  CheckedTensors tensors(**job, 1);
  tensors.RegisterAll();
  tensors.WriteAll();
  std::atomic<bool> ends = false;
  std::thread user([&] {
    while (!ends) {
      if (tensors.count() < 2 * kTensors) {
        EXPECT_TRUE(tensors.Register().ok());
      }
      tensors.WriteSome();
      tensors.CheckAll();
    }
  });
  for (int round = 0; round < 8; ++round) {
    absl::SleepFor(absl::Milliseconds(20 + 37 * round));
    daemon->Kill(SIGKILL);
    daemon->Wait();
    daemon->Start();
    EXPECT_TRUE(daemon->Serves());
  }
  ends = true;
  user.join();
  tensors.CheckAll();
  job->reset();
  EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 0; }));
  EXPECT_EQ(daemon->End().exit_code, 0);
  EXPECT_TRUE(IsEmpty());
}

TEST_P(KeptMediaTest, OfWhoGoesWhileThereIsNoDaemonNothingIsLeft) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  const auto daemon = StartWith("", "", /*keeps=*/true);
  for (const bool has_gone_before : {true, false}) {
    PlayedProcess process([&](PlayedProcess::Stage& stage) {
      auto job = ConnectAs(*daemon, kMemory, "night");
      if (!job.ok()) return;
      CheckedTensors tensors(**job, 7);
      tensors.RegisterAll();
      tensors.WriteAll();
      stage.Tell();
      while (true) tensors.WriteSome();
    });
    ASSERT_TRUE(process.HasTold());
    daemon->Kill(SIGKILL);
    daemon->Wait();
    if (has_gone_before) {
      process.Kill();
      process.Reap();
    }
    daemon->Start();
    ASSERT_TRUE(daemon->Serves());
    process.Kill();
    process.Reap();
    EXPECT_TRUE(daemon->WaitUntil([&] { return Used(*daemon) == 0; }));
    EXPECT_TRUE(daemon->WaitUntil([&] { return daemon->Kept().empty(); }));
  }
  EXPECT_EQ(daemon->End().exit_code, 0);
  EXPECT_TRUE(IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, KeptMediaTest, kMediaTiers, MediaName);

}  // namespace
}  // namespace terrace
