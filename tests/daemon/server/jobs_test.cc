// What jobs have of a daemon: Runtime::Connect to one that runs.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/support/child_process.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

std::string Words(const absl::Status& status) {
  return std::string(status.message());
}

TEST(JobsTest, WhatHasNoRoomInMemoryIsReadBack) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMiB);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(UsedMemory(daemon), kMiB);
  std::vector<TensorId> tensors;
  for (int i = 0; i < 40; ++i) {
    const auto id = RegisterOf(**job, absl::StrCat("t", i), 64 << 10);
    ASSERT_TRUE(id.ok()) << id.status();
    tensors.push_back(*id);
  }
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(FillOf(**job, tensors[i], i));
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(Holds(**job, tensors[i], i)) << i;
  const Stats stats = (*job)->GetStats();
  EXPECT_EQ(stats.host.budget_bytes, kMiB);
  EXPECT_GT(stats.bytes_written(), kMiB);
  EXPECT_GE(UsedPath(daemon), 40 * (64 << 10));
  EXPECT_TRUE((*job)->Close(Later()).ok());
  EXPECT_EQ((*job)->GetStats().bytes_written(), stats.bytes_written());
  job->reset();
  EXPECT_TRUE(daemon.WaitUntil(
      [&] { return UsedMemory(daemon) == 0 && UsedPath(daemon) == 0; }));
  EXPECT_EQ(daemon.End().exit_code, 0);
}

// Each has tensors, memory and files of its own.
TEST(JobsTest, TwoHaveNothingInCommon) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, kMiB, "one");
  auto two = ConnectAs(daemon, kMiB, "two");
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const TensorId a = *RegisterOf(**one, "same", 4096);
  const TensorId b = *RegisterOf(**two, "same", 4096);
  ASSERT_TRUE(FillOf(**one, a, 1));
  ASSERT_TRUE(FillOf(**two, b, 2));
  EXPECT_TRUE(Holds(**one, a, 1));
  EXPECT_TRUE(Holds(**two, b, 2));
  EXPECT_EQ(UsedMemory(daemon), 2 * kMiB);
  const auto status = daemon.Status();
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->jobs.size(), 2u);
  EXPECT_EQ(status->jobs[0].name, "one");
  EXPECT_EQ(status->jobs[0].uid, getuid());
  EXPECT_EQ(status->jobs[0].processes, 1);
  EXPECT_EQ(status->jobs[1].tiers.at(0).name, "dram");
  EXPECT_EQ(status->jobs[1].tiers.at(0).used_bytes, kMiB);
  one->reset();
  EXPECT_TRUE(Holds(**two, b, 2));
}

TEST(JobsTest, TheCommandLineShowsThem) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMiB, "night");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<std::string> words = {TERRACE_PROGRAM, "status", "--daemon",
                                          "unix:" + daemon.socket()};
  const ChildResult text = ChildProcess(words).Wait();
  EXPECT_THAT(text.output, HasSubstr(absl::StrCat("night of uid ", getuid(),
                                                  ": 1 process, dram: 1 MiB")));
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  const ChildResult json = ChildProcess(as_json).Wait();
  EXPECT_THAT(json.output, HasSubstr("\"name\": \"night\""));
  EXPECT_THAT(json.output, HasSubstr("\"dram\": 1048576"));
}

// What a process has closed can be had again at once, also by itself, and what
// it holds on to is counted until it has gone.
TEST(JobsTest, MemoryIsGivenBackOnceNobodyHasIt) {
  RunningDaemon daemon("quota.job.requests = 4\nquota.user.connections = 2\n");
  ASSERT_TRUE(daemon.Serves());
  for (int round = 0; round < 50; ++round) {
    auto job = ConnectAs(daemon, 8 * kMiB);
    ASSERT_TRUE(job.ok()) << round << ": " << job.status();
    const TensorId a = *RegisterOf(**job, "a", 4096);
    ASSERT_TRUE(FillOf(**job, a, 1));
    // More than the quota, one after the other, each without an answer.
    for (int i = 0; i < 6; ++i) {
      auto queue = (*job)->OpenQueue(4096, 1, Later());
      ASSERT_TRUE(queue.ok()) << queue.status();
      ASSERT_TRUE((*queue)->Push({{a, Access::kUpdate}}, 0, Later()).ok());
    }
    ASSERT_TRUE(Holds(**job, a, 1));
    EXPECT_EQ((*job)->GetStats().host.budget_bytes, 8 * kMiB);
    if (round % 2 == 0) {
      EXPECT_TRUE((*job)->Close(Later()).ok());
    }
  }
  if (!kChildrenHaveThreads) return;
  const pid_t child = fork();
  if (child == 0) {
    auto job = ConnectAs(daemon, 8 * kMiB);
    if (!job.ok()) _exit(1);
    auto pin = (*job)->Acquire(*RegisterOf(**job, "a", 4096),
                               Access::kOverwrite, Later());
    if (!pin.ok()) _exit(2);
    WritePattern(pin->data(), 3);
    job->reset();
    // The bytes are the pin's, and nobody else's.
    const bool refused =
        absl::IsResourceExhausted(ConnectAs(daemon, 4096).status());
    _exit(refused && HasPattern(pin->data(), 3) ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  auto again = ConnectAs(daemon, 8 * kMiB);
  EXPECT_TRUE(again.ok()) << again.status();
}

// Memory that pins hold on to is its process's, and a connection; when that has
// gone nobody has the pages, whoever it gave the memory to.
TEST(JobsTest, WhatIsHeldIsItsConnectionToo) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  RunningDaemon daemon("quota.user.connections = 3\n");
  ASSERT_TRUE(daemon.Serves());
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Pin> held;
    for (int i = 0; i < 2; ++i) {
      auto job = ConnectAs(daemon, kMiB);
      if (!job.ok()) _exit(1);
      auto pin = (*job)->Acquire(*RegisterOf(**job, "a", 4096),
                                 Access::kOverwrite, Later());
      if (!pin.ok()) _exit(2);
      held.push_back(*std::move(pin));
    }
    // Two are held on to; the third is the question itself.
    const auto status = daemon.Status();
    if (!status.ok() || status->users.at(0).connections != 3) _exit(3);
    if (status->tiers.at(0).used_bytes != 2 * kMiB) _exit(4);
    if (write(ends[1], "x", 1) != 1) _exit(5);
    while (true) pause();
  }
  close(ends[1]);  // so that a child that ends is heard
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_EQ(UsedMemory(daemon), 2 * kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(UsedMemory(daemon), 0);
  auto all = ConnectAs(daemon, 8 * kMiB);
  EXPECT_TRUE(all.ok()) << all.status();
  close(ends[0]);
}

TEST(JobsTest, ANameThatALineCannotHaveIsRefused) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  for (const char* name :
       {"a\nb", "\x7f", "\xff", "\xc2", "\xc2\x9b", "\xc0\x80", "\xe0\x80\x80",
        "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    const absl::Status refused = ConnectAs(daemon, kMiB, name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  for (const char* name : {"night 2",
                           "n\xc3\xa4"
                           "chtlich",
                           "\xf0\x9f\x8c\x99"}) {
    EXPECT_TRUE(ConnectAs(daemon, kMiB, name).ok()) << name;
  }
}

// Whatever it was about: pins, transfers, a wait.
TEST(JobsTest, AProcessThatIsKilledLeavesNothing) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto other = ConnectAs(daemon, kMiB, "other");
  ASSERT_TRUE(other.ok());
  const TensorId kept = *RegisterOf(**other, "kept", 4096);
  ASSERT_TRUE(FillOf(**other, kept, 9));
  const int64_t path_before = UsedPath(daemon);
  for (int round = 0; round < 8; ++round) {
    int ready[2] = {};
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto job = ConnectAs(daemon, 2 * kMiB, "killed");
      std::vector<Pin> pins;
      for (int i = 0; job.ok() && i < 40; ++i) {
        const TensorId id = *RegisterOf(**job, absl::StrCat(i), 64 << 10);
        auto pin = (*job)->Acquire(id, Access::kOverwrite, Later());
        if (!pin.ok()) _exit(1);
        WritePattern(pin->data(), 1);
        if (i == 3) pins.push_back(*std::move(pin));
        if (i == 4 * round && write(ready[1], "x", 1) != 1) _exit(1);
      }
      while (true) pause();
    }
    close(ready[1]);  // so that a child that ends is heard
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    EXPECT_TRUE(daemon.WaitUntil([&] { return UsedMemory(daemon) == kMiB; }));
    EXPECT_EQ(UsedPath(daemon), path_before);
    EXPECT_TRUE(Holds(**other, kept, 9));
  }
}

TEST(JobsTest, WhenTheDaemonIsGoneNobodyWaits) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMiB);
  ASSERT_TRUE(job.ok());
  const TensorId a = *RegisterOf(**job, "a", 4096);
  ASSERT_TRUE(FillOf(**job, a, 1));
  auto held = (*job)->Acquire(a, Access::kUpdate, Later());
  ASSERT_TRUE(held.ok());
  auto queue = (*job)->OpenQueue(4096, 1, Later());
  ASSERT_TRUE(queue.ok());
  ASSERT_TRUE((*queue)->Push({{a, Access::kUpdate}}, 0, Later()).ok());
  std::thread waits([&] {
    const absl::Status next = (*queue)->Next(absl::InfiniteFuture()).status();
    EXPECT_TRUE(absl::IsUnavailable(next)) << next;
    EXPECT_THAT(Words(next), HasSubstr("checkpoint"));
  });
  std::thread asks([&] {
    // All windows together fit the budget, once the pin has ended.
    const int64_t slot_bytes = (1 << 19) - 2 * kTensorHeaderBytes;
    const absl::Status opened =
        (*job)->OpenQueue(slot_bytes, 2, absl::InfiniteFuture()).status();
    EXPECT_TRUE(absl::IsUnavailable(opened)) << opened;
  });
  daemon.Kill(SIGKILL);
  waits.join();
  asks.join();
  EXPECT_TRUE(HasPattern(held->data(), 1));  // the bytes are this process's too
  WritePattern(held->data(), 2);
  EXPECT_TRUE(absl::IsUnavailable(RegisterOf(**job, "b", 4096).status()));
  EXPECT_TRUE(absl::IsUnavailable((*queue)->BeginStep(1)));
  EXPECT_TRUE(
      absl::IsUnavailable((*queue)->Push({{a, Access::kRead}}, 1, Later())));
  EXPECT_GT((*job)->thread_pool().size(), 0);
  EXPECT_TRUE((*job)->Close(Later()).ok());
  queue->reset();
  job->reset();
  EXPECT_TRUE(HasPattern(held->data(), 2));
}

TEST(JobsTest, ADaemonThatEndsGivesAllBack) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMiB);
  ASSERT_TRUE(job.ok());
  const TensorId a = *RegisterOf(**job, "a", 64 << 10);
  auto held = (*job)->Acquire(a, Access::kOverwrite, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  const ChildResult& ended = daemon.End();
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_TRUE(daemon.OnPath().empty());
  EXPECT_TRUE(absl::IsUnavailable(RegisterOf(**job, "b", 4096).status()));
  WritePattern(held->data(), 2);
}

TEST(JobsTest, WhatIsTheDaemonsToSayIsRefused) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  const auto refused = [&](auto change) {
    Options options;
    options.host_budget_bytes = kMiB;
    options.daemon = daemon.socket();
    change(options);
    return Runtime::Create(options).status();
  };
  EXPECT_TRUE(refused([](Options&) {}).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(refused([](Options& o) { o.paths = {"/tmp"}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.tiers = {*ParseTier("dram=1MiB")}; })));
  EXPECT_TRUE(absl::IsUnimplemented(
      refused([](Options& o) { o.tiers = {*ParseTier("hbm:cuda:0=1MiB")}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.engine = EngineKind::kThreads; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.host_budget_bytes = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.host_budget_bytes = 1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.job.assign(256, 'x'); })));
  EXPECT_TRUE(absl::IsNotFound(
      refused([](Options& o) { o.daemon = "unix:/nowhere/s"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      refused([](Options& o) { o.daemon = "tcp:host:1"; })));
}

}  // namespace
}  // namespace terrace
