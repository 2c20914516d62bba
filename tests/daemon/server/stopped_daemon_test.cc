// A daemon one of whose threads has stopped, as by a fault of its own.
#include <signal.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace terrace
