// Queues of bytes of a job's process: what they have beside the budget is
// counted, and is the process's for as long as it uses it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "terrace/byte_queue.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kBudget = 1 << 20;  // of a process
constexpr int64_t kTensor = kBudget / 2 - kTensorHeaderBytes;

// Two tensors fill a process's budget, and are in use while it asks for a third
// one.
struct FullJob {
  explicit FullJob(std::unique_ptr<Runtime> made) : runtime(std::move(made)) {
    queue = *runtime->OpenBytes(kBudget);
    for (uint8_t seed = 1; seed <= 3; ++seed) {
      tensors.push_back(
          *RegisterOf(*runtime, std::string(1, 'a' + seed), kTensor));
      const auto pins = Take({{tensors.back(), Access::kOverwrite}});
      EXPECT_TRUE(pins.ok()) << pins.status();
      if (pins.ok()) WritePattern(pins->front().data(), seed);
    }
  }

  absl::StatusOr<std::vector<Pin>> Take(std::vector<Want> wants,
                                        std::vector<uint64_t> used = {}) {
    const auto request = queue->Push(wants, used, Later());
    if (!request.ok()) return request.status();
    while (true) {
      auto news = queue->Await(*request, Later());
      if (!news.ok()) return news.status();
      for (const uint64_t token : news->recalls) queue->Keep(token);
      if (news->pins.has_value()) return *std::move(news->pins);
    }
  }
  absl::StatusOr<std::vector<Pin>> TakeThird() {
    auto first = Take({{tensors[0]}, {tensors[1]}});
    if (!first.ok()) return first.status();
    for (Pin& each : *first) in_use.push_back(std::move(each));
    return Take({{tensors[2], Access::kUpdate}},
                {in_use[0].token(), in_use[1].token()});
  }

  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<ByteQueue> queue;
  std::vector<TensorId> tensors;
  std::vector<Pin> in_use;
};

TEST(JobBytesTest, WhatIsBeyondTheBudgetIsCountedWhileItLasts) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto connected = ConnectAs(daemon, kBudget);
  ASSERT_TRUE(connected.ok()) << connected.status();
  FullJob job(*std::move(connected));
  {
    const auto third = job.TakeThird();
    ASSERT_TRUE(third.ok()) << third.status();
    EXPECT_TRUE(HasPattern(third->front().data(), 3));
    WritePattern(third->front().data(), 4);
    EXPECT_EQ(UsedMemory(daemon), kBudget + kBudget / 2);
    EXPECT_EQ(job.runtime->GetStats().bytes.beyond_bytes, kBudget / 2);
  }
  EXPECT_TRUE(daemon.WaitUntil([&] { return UsedMemory(daemon) == kBudget; }));
  job.in_use.clear();
  EXPECT_TRUE(HasPattern(job.Take({{job.tensors[2]}})->front().data(), 4));
}

TEST(JobBytesTest, AQuotaBoundsIt) {
  RunningDaemon daemon("[quota.job]\ntiers = ['dram=1MiB']\n");
  ASSERT_TRUE(daemon.Serves());
  auto connected = ConnectAs(daemon, kBudget);
  ASSERT_TRUE(connected.ok()) << connected.status();
  FullJob job(*std::move(connected));
  const absl::Status refused = job.TakeThird().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("524288 bytes are too many"));
  EXPECT_EQ(UsedMemory(daemon), kBudget);
  // Who gives up what it has can have it.
  job.in_use.clear();
  EXPECT_TRUE(HasPattern(job.Take({{job.tensors[2]}})->front().data(), 3));
  EXPECT_THAT(daemon.End().errors, HasSubstr("524288 bytes are too many"));
}

// As of any pin: the bytes outlive the runtime, and are counted meanwhile.
TEST(JobBytesTest, WhatAPinHasBeyondTheBudgetIsItsUntilTheProcessHasGone) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const pid_t child = fork();
  if (child == 0) {
    auto connected = ConnectAs(daemon, kBudget);
    if (!connected.ok()) _exit(1);
    FullJob job(*std::move(connected));
    auto third = job.TakeThird();
    if (!third.ok()) _exit(2);
    WritePattern(third->front().data(), 5);
    job.queue.reset();
    job.runtime.reset();
    const bool is_there = HasPattern(third->front().data(), 5);
    const bool is_counted = UsedMemory(daemon) == kBudget + kBudget / 2;
    _exit(is_there && is_counted ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // Whoever asks next finds that it has gone.
  auto all = ConnectAs(daemon, 8 * kBudget);
  EXPECT_TRUE(all.ok()) << all.status();
}

// A thread that waits for a group hears why nothing comes.
TEST(JobBytesTest, WhoWaitsWhenTheDaemonIsGoneIsTold) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto connected = ConnectAs(daemon, kBudget);
  ASSERT_TRUE(connected.ok()) << connected.status();
  FullJob job(*std::move(connected));
  const auto held = job.Take({{job.tensors[0], Access::kUpdate}});
  ASSERT_TRUE(held.ok()) << held.status();
  const auto request =
      job.queue->Push({{job.tensors[0]}}, {}, absl::InfiniteFuture());
  ASSERT_TRUE(request.ok()) << request.status();
  std::thread waits([&] {
    absl::Status told;
    do {
      told = job.queue->Await(*request, absl::InfiniteFuture()).status();
    } while (told.ok());
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  });
  std::thread hears([&] {
    absl::Status told;
    do {
      told = job.queue->AwaitRecalls(absl::InfiniteFuture()).status();
    } while (told.ok());
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  });
  daemon.Kill(SIGKILL);
  waits.join();
  hears.join();
  EXPECT_TRUE(HasPattern(held->front().data(), 1));
}

}  // namespace
}  // namespace terrace
