// Each loop of a daemon's threads, stopped as by a fault of its own: by whom it
// is told, and how soon.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// What is asked for is 2 s; a sanitiser's threads take longer to turn.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr absl::Duration kSoonEnough = absl::Seconds(4);
#else
constexpr absl::Duration kSoonEnough = absl::Seconds(2);
#endif

// Until the log has it too, whose writers look twice a second.
constexpr useconds_t kLogged = 1'200'000;

// A daemon with one job's process, which is this one.
class WatchedLoopsTest : public testing::Test {
 protected:
  explicit WatchedLoopsTest(const std::string& text = "")
      : metrics_(directory_.path() + "/m"),
        daemon_(absl::StrCat("drain_seconds = 2\nmetrics = 'unix:", metrics_,
                             "'\n", text)) {}

  void SetUp() override {
    ASSERT_TRUE(daemon_.Serves());
    auto job = ConnectAs(daemon_, 1 << 20, "night");
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
    ASSERT_EQ(Get(metrics_, "/readyz").status, 200);
    AwaitThreads(2);
  }
  // A thread names itself, and may be late.
  void AwaitThreads(size_t runtimes) {
    for (const char* const name : {"terrace-mover", "terrace-files"}) {
      EXPECT_TRUE(daemon_.WaitUntil([&] {
        return ThreadsNamed(daemon_.pid(), name).size() == runtimes;
      })) << name;
    }
  }

  std::string Own(const std::string& loop) const {
    return absl::StrCat(loop, " of process ", getpid());
  }
  // How long it takes until /readyz has that status and says, or does not say,
  // the words; without the longest that this machine kept the test itself from
  // looking.
  absl::Duration UntilReadyz(int status, const std::string& words,
                             bool has_them) {
    const absl::Time begin = absl::Now();
    absl::Time looked = begin;
    absl::Duration longest;
    EXPECT_TRUE(daemon_.WaitUntil([&] {
      longest = std::max(longest, absl::Now() - looked);
      const HttpAnswer answer = Get(metrics_, "/readyz");
      looked = absl::Now();
      return answer.status == status &&
             absl::StrContains(answer.body, words) == has_them;
    })) << words;
    return absl::Now() - begin - longest;
  }
  // That thread stops: /readyz names the loop, and is green again after it.
  void StopAndGoOn(pid_t thread, const std::string& loop) {
    const std::string words = absl::StrCat("stopped: ", loop, ",");
    {
      const StoppedThread stopped(thread);
      ASSERT_TRUE(stopped.ok());
      EXPECT_LT(UntilReadyz(503, words, true), kSoonEnough) << loop;
      EXPECT_EQ(Get(metrics_, "/healthz").status, 200);
      usleep(kLogged);
    }
    EXPECT_LT(UntilReadyz(200, "stopped", false), kSoonEnough) << loop;
  }
  bool MayTrace() {
    const StoppedThread tried(daemon_.pid(), "terrace-loops");
    return tried.ok();
  }
  pid_t Thread(const std::string& name, size_t which = 0) const {
    const std::vector<pid_t> threads = ThreadsNamed(daemon_.pid(), name);
    EXPECT_GT(threads.size(), which) << name;
    return threads.size() > which ? threads[which] : 0;
  }

  const TemporaryDirectory directory_;
  const std::string metrics_;
  RunningDaemon daemon_;
  std::unique_ptr<Runtime> job_;
};

TEST_F(WatchedLoopsTest, EachThatStopsIsToldAndGoesOn) {
  if (!MayTrace()) GTEST_SKIP() << "a child may not be traced here";
  StopAndGoOn(daemon_.pid(), "server");
  StopAndGoOn(Thread("terrace-session"), Own("session"));
  // The daemon's own threads are older than those of the job.
  StopAndGoOn(Thread("terrace-mover", 0), "mover");
  StopAndGoOn(Thread("terrace-mover", 1), Own("mover"));
  StopAndGoOn(Thread("terrace-files", 0), "files 0");
  StopAndGoOn(Thread("terrace-files", 1), Own("files 0"));
  StopAndGoOn(Thread("terrace-watch"), "asker");
  StopAndGoOn(Thread("terrace-log"), "log");
  std::vector<std::string> loops = {
      "server",  Own("session"), "mover", Own("mover"),
      "files 0", Own("files 0"), "asker", "log"};
  const std::vector<pid_t> pool = ThreadsNamed(daemon_.pid(), "terrace-exec");
  ASSERT_FALSE(pool.empty());
  for (const size_t i : std::set<size_t>{0, pool.size() - 1}) {
    loops.push_back(absl::StrCat("checksums ", i));
    StopAndGoOn(pool[i], loops.back());
  }
  const TensorId a = *RegisterOf(*job_, "a", 4096);
  EXPECT_TRUE(FillOf(*job_, a, 1));
  usleep(kLogged);
  const ChildResult& ended = daemon_.End();
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  for (const std::string& loop : loops) {
    EXPECT_THAT(ended.errors,
                HasSubstr(absl::StrCat("error: has stopped: ", loop, "\n")));
    EXPECT_THAT(ended.errors,
                HasSubstr(absl::StrCat("warning: turns again: ", loop, "\n")));
  }
}

TEST_F(WatchedLoopsTest, TheWatchAndTheResponderAreWatchedToo) {
  if (!MayTrace()) GTEST_SKIP() << "a child may not be traced here";
  {
    const StoppedThread stopped(daemon_.pid(), "terrace-loops");
    EXPECT_LT(UntilReadyz(503, "stopped: watch", true), kSoonEnough);
  }
  EXPECT_LT(UntilReadyz(200, "stopped", false), kSoonEnough);
  // Of the responder there is no answer; the status names it.
  const StoppedThread stopped(daemon_.pid(), "terrace-metrics");
  ASSERT_TRUE(stopped.ok());
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(daemon_.WaitUntil([&] {
    const auto status = daemon_.Status();
    return status.ok() && absl::c_any_of(status->stopped, [](const auto& each) {
             return each.name == "metrics";
           });
  }));
  EXPECT_LT(absl::Now() - begin, kSoonEnough);
}

TEST_F(WatchedLoopsTest, TheStatusNamesTheLoopAndItsJob) {
  if (!MayTrace()) GTEST_SKIP() << "a child may not be traced here";
  const auto run = [&](const std::vector<std::string>& options) {
    std::vector<std::string> command = {
        TERRACE_PROGRAM, "status", "--daemon",
        absl::StrCat("unix:", daemon_.socket())};
    command.insert(command.end(), options.begin(), options.end());
    return ChildProcess(command).Wait().output;
  };
  EXPECT_THAT(run({}), Not(HasSubstr("stopped")));
  EXPECT_THAT(run({"--json"}), HasSubstr("\"stopped\": []"));
  const StoppedThread stopped(Thread("terrace-mover", 1));
  ASSERT_TRUE(stopped.ok());
  UntilReadyz(503, Own("mover"), true);
  EXPECT_THAT(run({}), HasSubstr(absl::StrCat("stopped  ", Own("mover"))));
  EXPECT_THAT(run({"--json"}),
              HasSubstr(absl::StrCat("\"loop\": \"", Own("mover"), "\"")));
  const auto status = daemon_.Status();
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(status->stopped.size(), 1u);
  EXPECT_GE(status->stopped[0].silent_for_ms, 1300);
  EXPECT_LT(status->stopped[0].silent_for_ms, 60'000);
}

// Nor is one that sleeps in a wait without an end: it is woken, and answers.
TEST_F(WatchedLoopsTest, OnesThatSleepHaveNotStopped) {
  const absl::Time until = absl::Now() + absl::Seconds(4);
  EXPECT_TRUE(daemon_.WaitUntil([&] {
    EXPECT_EQ(Get(metrics_, "/readyz").body, "serving\n");
    usleep(100'000);
    return absl::Now() >= until;
  }));
  const auto samples = SamplesOf(Get(metrics_, "/metrics").body);
  // The server, the responder, the asker, the log and the threads that compute
  // checksums; a mover and a disk each of the daemon and the job, and the job's
  // session.
  const auto pool = ThreadsNamed(daemon_.pid(), "terrace-exec").size();
  EXPECT_GT(pool, 0u);
  const auto all = static_cast<double>(9 + pool);
  EXPECT_EQ(samples.at("terrace_loops"), all);
  job_.reset();
  ASSERT_TRUE(daemon_.WaitUntil([&] {
    return SamplesOf(Get(metrics_, "/metrics").body).at("terrace_loops") ==
           all - 3;
  }));
}

class WatchedLogTest : public WatchedLoopsTest {
 protected:
  WatchedLogTest() : WatchedLoopsTest("log = 'debug'\n") {}
};

// More is said meanwhile than there is room for: the oldest of it is lost.
TEST_F(WatchedLogTest, AStoppedLogHoldsUpNobody) {
  if (!MayTrace()) GTEST_SKIP() << "a child may not be traced here";
  constexpr int kSaid = 1500;
  constexpr int kRoom = 1024;
  {
    const StoppedThread stopped(daemon_.pid(), "terrace-log");
    ASSERT_TRUE(stopped.ok());
    const absl::Time begin = absl::Now();
    for (int i = 0; i < kSaid; ++i) ASSERT_TRUE(daemon_.Status().ok());
    EXPECT_TRUE(FillOf(*job_, *RegisterOf(*job_, "a", 4096), 1));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
    UntilReadyz(503, "stopped: log,", true);
    usleep(kLogged);
  }
  EXPECT_LT(UntilReadyz(200, "stopped", false), kSoonEnough);
  usleep(kLogged);
  const ChildResult& ended = daemon_.End();
  EXPECT_EQ(ended.exit_code, 0);
  const std::vector<std::string> lines = absl::StrSplit(ended.errors, '\n');
  const auto debug = absl::c_count_if(lines, [](const std::string& each) {
    return absl::StrContains(each, " debug: ");
  });
  EXPECT_GT(debug, kRoom - 100);
  EXPECT_LT(debug, kRoom + 100);
  const bool is_told =
      absl::StrContains(ended.errors, "error: has stopped: log\n");
  EXPECT_TRUE(is_told);
}

// With whatever lock of it that it had taken.
TEST_F(WatchedLoopsTest, OneThatStopsInTheAllocatorIsToldToo) {
  if (!MayTrace()) GTEST_SKIP() << "a child may not be traced here";
  auto job = ConnectAs(daemon_, 1 << 20, "busy", 0, absl::Seconds(8));
  ASSERT_TRUE(job.ok()) << job.status();
  AwaitThreads(3);
  const pid_t mover = Thread("terrace-mover", 2);
  std::atomic<bool> ends = false;
  absl::Status told;
  std::thread asks([&] {
    while (told.ok() && !ends) {
      const auto tensor = RegisterOf(**job, "t", 4096);
      told = tensor.ok() ? (*job)->Unregister(*tensor) : tensor.status();
    }
  });
  std::unique_ptr<StoppedThread> stopped =
      StopInAllocator(daemon_.pid(), mover);
  if (stopped != nullptr) {
    // Itself, unless it holds up its session, which would ask it.
    const std::string one = Own("mover").substr(strlen("mover"));
    EXPECT_LT(UntilReadyz(503, one, true), kSoonEnough);
    EXPECT_EQ(Get(metrics_, "/healthz").status, 200);
    asks.join();
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
    EXPECT_THAT(std::string(told.message()),
                testing::AnyOf(HasSubstr("'mover'"), HasSubstr("'session'")));
    stopped.reset();
  } else {
    ends = true;
    asks.join();
  }
  job->reset();
  EXPECT_LT(UntilReadyz(200, "stopped", false), kSoonEnough);
  if (!told.ok()) return;
  GTEST_SKIP() << "the mover was not seen there";
}

// Stopped for a while as a whole, it finds nothing wrong when it goes on.
TEST_F(WatchedLoopsTest, AProcessThatStoodStillHasNoStoppedLoops) {
  daemon_.Kill(SIGSTOP);
  usleep(3'000'000);
  daemon_.Kill(SIGCONT);
  const absl::Time until = absl::Now() + absl::Seconds(2);
  while (absl::Now() < until) {
    EXPECT_THAT(Get(metrics_, "/readyz").body, Not(HasSubstr("mover")));
  }
  EXPECT_EQ(Get(metrics_, "/readyz").body, "serving\n");
}

}  // namespace
}  // namespace terrace
