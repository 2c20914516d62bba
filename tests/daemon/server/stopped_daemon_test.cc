// A daemon one of whose threads has stopped, as by a fault of its own.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;

int64_t WatchedWords(RunningDaemon& daemon) {
  return absl::c_count_if(daemon.Told(), [](const std::string& each) {
    return absl::StrContains(each, "WATCHDOG=1");
  });
}

TEST(StoppedDaemonTest, AMoverThatHasStoppedIsToldAndNotFed) {
  RunningDaemon daemon("drain_seconds = 1\n",
                       {.before = "export WATCHDOG_USEC=300000"});
  ASSERT_TRUE(daemon.Serves());
  StoppedThread mover(daemon.pid(), "terrace-mover");
  if (!mover.ok()) GTEST_SKIP() << "a child may not be traced here";
  // The socket's thread turns.
  ASSERT_TRUE(daemon.WaitUntil([&] {
    const auto status = daemon.Status();
    return status.ok() && status->silent_for_ms > 2'100;
  }));
  const int64_t before = WatchedWords(daemon);
  EXPECT_GT(before, 0);
  ASSERT_TRUE(daemon.WaitUntil([&] {
    const auto status = daemon.Status();
    return status.ok() && status->silent_for_ms > 3'000;
  }));
  EXPECT_EQ(WatchedWords(daemon), before);
  // It ends at its deadline all the same.
  daemon.Kill(SIGTERM);
  mover.AwaitEnd();
  const ChildResult& ended = daemon.Wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("has not ended within its deadline"));
}

TEST(StoppedDaemonTest, ASecondSignalEndsItAtOnce) {
  RunningDaemon daemon("drain_seconds = 3600\n");
  ASSERT_TRUE(daemon.Serves());
  StoppedThread mover(daemon.pid(), "terrace-mover");
  if (!mover.ok()) GTEST_SKIP() << "a child may not be traced here";
  daemon.Kill(SIGTERM);
  EXPECT_TRUE(daemon.WaitUntilTold("STOPPING=1"));
  const auto draining = daemon.Status();  // nobody listens any more
  EXPECT_TRUE(absl::IsNotFound(draining.status())) << draining.status();
  daemon.Kill(SIGINT);
  mover.AwaitEnd();
  const ChildResult& ended = daemon.Wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.errors, HasSubstr("told to end a second time"));
}

constexpr absl::Duration kPatience = absl::Seconds(3);
constexpr int64_t kJobBytes = 1 << 20;

// All of its threads, each of which goes on until it hears of the signal.
bool HasStopped(pid_t process) {
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const auto& each : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(each.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t state = stat.rfind(") ");
    if (state == std::string::npos || stat[state + 2] != 'T') return false;
  }
  return true;
}

// What waits without a deadline ends, with an error that says why.
void ExpectTold(Runtime& job) {
  const absl::Time before = SystemClock().Now();
  const absl::Status told = RegisterOf(job, "b", 4096).status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("it is stopped"));
  EXPECT_LT(SystemClock().Now() - before, absl::Seconds(20));
}

TEST(StoppedDaemonTest, WhoWaitsForOneIsTold) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kJobBytes, "", 0, kPatience);
  ASSERT_TRUE(job.ok()) << job.status();
  const TensorId a = *RegisterOf(**job, "a", 4096);
  auto held = (*job)->Acquire(a, Access::kOverwrite, Later());
  ASSERT_TRUE(held.ok());
  WritePattern(held->data(), 1);
  daemon.Kill(SIGSTOP);
  ASSERT_TRUE(daemon.WaitUntil([&] { return HasStopped(daemon.pid()); }));
  ExpectTold(**job);
  EXPECT_TRUE(HasPattern(held->data(), 1));
  EXPECT_TRUE((*job)->Close(Later()).ok());
  daemon.Kill(SIGCONT);
  // It finds that the process has gone on without it.
  held->Release();
  job->reset();
  EXPECT_TRUE(ConnectAs(daemon, 7 * kJobBytes).ok());
}

TEST(StoppedDaemonTest, WhoseSessionHasStoppedIsToldAndOthersAreServed) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kJobBytes, "", 0, kPatience);
  ASSERT_TRUE(job.ok()) << job.status();
  StoppedThread session(daemon.pid(), "terrace-session");
  if (!session.ok()) GTEST_SKIP() << "a child may not be traced here";
  ExpectTold(**job);
  auto other = ConnectAs(daemon, kJobBytes);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(FillOf(**other, *RegisterOf(**other, "a", 4096), 1));
}

// Silence is the daemon's alone: what it says meanwhile is there to be read.
TEST(StoppedDaemonTest, WhoWasStoppedItselfGoesOn) {
  if (!kChildrenHaveThreads) GTEST_SKIP() << "a child may have no threads";
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto job = ConnectAs(daemon, kJobBytes, "", 0, kPatience);
    if (!job.ok()) _exit(1);
    const auto tensor = RegisterOf(**job, "a", 4096);
    if (!tensor.ok() || write(told[1], "!", 1) != 1) _exit(2);
    // Idle, so that its relay asks again and again.
    const absl::Time until = SystemClock().Now() + 4 * kPatience;
    while (SystemClock().Now() < until) absl::SleepFor(kPatience / 30);
    const bool goes_on = FillOf(**job, *tensor, 1) && Holds(**job, *tensor, 1);
    job->reset();
    _exit(goes_on ? 0 : 3);
  }
  char word = 0;
  ASSERT_EQ(read(told[0], &word, 1), 1);
  absl::SleepFor(kPatience);
  kill(child, SIGSTOP);
  absl::SleepFor(2 * kPatience);
  kill(child, SIGCONT);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(told[0]);
  close(told[1]);
}

}  // namespace
}  // namespace terrace
