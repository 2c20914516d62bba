// What users and jobs may have of a daemon, to the byte.
#include <sys/resource.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;

std::string WordsOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(JobQuotasTest, MemoryIsCountedToTheByte) {
  RunningDaemon daemon(
      "[quota.user]\ntiers = ['dram=4MiB']\n"
      "[quota.job]\ntiers = ['dram=3MiB']\n");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 2 * kMib, "night", 100 * kMib);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(UsedMemory(daemon), 2 * kMib);
  EXPECT_TRUE((*one)->GrowMemory(kMib).ok());
  EXPECT_EQ((*one)->GetStats().host.budget_bytes, 3 * kMib);
  EXPECT_EQ(UsedMemory(daemon), 3 * kMib);
  const absl::Status more = (*one)->GrowMemory(4096);
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_THAT(WordsOf(more), HasSubstr("dram: 4096 bytes are too many"));
  EXPECT_FALSE((*one)->GrowMemory(8192).ok());
  const absl::Status job = ConnectAs(daemon, 4096, "night").status();
  EXPECT_TRUE(absl::IsResourceExhausted(job)) << job;
  EXPECT_EQ(WordsOf(job),
            absl::StrCat("dram: 4096 bytes are too many: the job 'night' of "
                         "uid ",
                         getuid(),
                         " has 3145728, and the limit is "
                         "3145728"));
  const absl::Status user = ConnectAs(daemon, kMib + 1, "day").status();
  EXPECT_TRUE(absl::IsResourceExhausted(user)) << user;
  EXPECT_THAT(WordsOf(user),
              HasSubstr(absl::StrCat("the user ", getuid(), " has 3145728")));
  auto rest = ConnectAs(daemon, kMib, "day");
  EXPECT_TRUE(rest.ok()) << rest.status();
  one->reset();
  EXPECT_TRUE(daemon.WaitUntil([&] { return UsedMemory(daemon) == kMib; }));
  const std::string log = daemon.End().errors;
  EXPECT_THAT(log, HasSubstr("dram: 4096 bytes are too many"));
  // What was refused as it grew, too.
  EXPECT_THAT(log, HasSubstr(absl::StrCat(
                       "refused uid ", getuid(), ", pid ", getpid(),
                       ": the job 'night' of uid ", getuid(),
                       ": dram: 8192 bytes are too many: the job 'night' of "
                       "uid ",
                       getuid(), " has 3145728, and the limit is 3145728")));
}

// A runtime that has begun to close refuses what has its pages already.
TEST(JobQuotasTest, WhatGrewIsCountedThoughItWasRefused) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMib, "", 8 * kMib);
  ASSERT_TRUE(job.ok()) << job.status();
  auto held = (*job)->Acquire(*RegisterOf(**job, "a", 4096), Access::kOverwrite,
                              Later());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_TRUE(absl::IsFailedPrecondition((*job)->Close(Later())));
  for (int i = 0; i < 3; ++i) (*job)->GrowMemory(2 * kMib).IgnoreError();
  const int64_t used = UsedMemory(daemon);
  EXPECT_TRUE(used == kMib || used == 7 * kMib) << used;
  const absl::Status more = (*job)->GrowMemory(2 * kMib);
  EXPECT_FALSE(more.ok());
  EXPECT_LE(UsedMemory(daemon), 8 * kMib);
  held->Release();
  job->reset();
  EXPECT_TRUE(daemon.WaitUntil([&] { return UsedMemory(daemon) == 0; }));
}

TEST(JobQuotasTest, AllTogetherHaveNoMoreThanTheTier) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 5 * kMib);
  ASSERT_TRUE(one.ok()) << one.status();
  const absl::Status two = ConnectAs(daemon, 5 * kMib).status();
  EXPECT_TRUE(absl::IsResourceExhausted(two)) << two;
  EXPECT_THAT(WordsOf(two), HasSubstr("all of this host's jobs together has "
                                      "5242880, and the limit is 8388608"));
}

// The daemon's user has as many threads as it may have.
TEST(JobQuotasTest, WhoCannotHaveAThreadIsToldSo) {
  if (getuid() != 0) GTEST_SKIP() << "it takes root to bound another user";
  const auto run = [](const std::vector<std::string>& words) {
    std::vector<std::string> command = {"/usr/bin/setpriv", "--clear-groups",
                                        "--reuid=4711", "--regid=4711"};
    command.insert(command.end(), words.begin(), words.end());
    return ChildProcess(command).Wait().exit_code == 0;
  };
  if (!run({TERRACED_PROGRAM, "--version"})) {
    GTEST_SKIP() << TERRACED_PROGRAM << " is for one user";
  }
  RunningDaemon daemon("", {.uid = 4711});
  ASSERT_TRUE(daemon.Serves());
  rlimit before = {};  // this process's, too
  ASSERT_EQ(getrlimit(RLIMIT_NPROC, &before), 0);
  const auto bound = [&](const std::string& threads) {
    return run({"/usr/bin/prlimit", absl::StrCat("--pid=", daemon.pid()),
                absl::StrCat("--nproc=", threads, ":")});
  };
  ASSERT_TRUE(bound("1"));
  const absl::Status refused = ConnectAs(daemon, kMib).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(WordsOf(refused), HasSubstr("cannot start a session's thread"));
  EXPECT_EQ(UsedMemory(daemon), 0);
  ASSERT_TRUE(bound(before.rlim_cur == RLIM_INFINITY
                        ? "unlimited"
                        : absl::StrCat(before.rlim_cur)));
  EXPECT_TRUE(ConnectAs(daemon, kMib).ok());
}

TEST(JobQuotasTest, DisksAreCountedAsTheyGrow) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 4 * kMib, "one");
  auto two = ConnectAs(daemon, 2 * kMib, "two");
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_TRUE(RegisterOf(**one, "a", 3 * kMib).ok());
  EXPECT_GE(UsedPath(daemon), 3 * kMib);
  const absl::Status beyond = RegisterOf(**two, "b", 5 * kMib).status();
  EXPECT_TRUE(absl::IsResourceExhausted(beyond)) << beyond;
  EXPECT_THAT(WordsOf(beyond), HasSubstr("EDQUOT"));
  one->reset();
  EXPECT_TRUE(daemon.WaitUntil([&] { return UsedPath(daemon) == 0; }));
  EXPECT_TRUE(RegisterOf(**two, "b", 5 * kMib).ok());
}

TEST(JobQuotasTest, ArenasAndRequestsAreCounted) {
  RunningDaemon daemon("[quota.job]\narenas = 1\nrequests = 2\n");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, kMib);
  ASSERT_TRUE(job.ok()) << job.status();
  const absl::Status second = ConnectAs(daemon, kMib).status();
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_THAT(WordsOf(second), HasSubstr("1 arenas, and the limit is 1"));

  const TensorId a = *RegisterOf(**job, "a", 4096);
  const TensorId b = *RegisterOf(**job, "b", 4096);
  auto queue = (*job)->OpenQueue(4096, 2, Later());
  ASSERT_TRUE(queue.ok());
  ASSERT_TRUE(FillOf(**job, a, 1));
  ASSERT_TRUE((*queue)->Push({{a, Access::kUpdate}}, 0, Later()).ok());
  auto held = (*queue)->Next(Later());
  ASSERT_TRUE(held.ok() && held->pins.ok());
  // These wait for that pin, and one more is too many.
  auto waits = (*job)->OpenQueue(4096, 2, Later());
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    ASSERT_TRUE((*waits)->Push({{a, Access::kUpdate}}, tag, Later()).ok());
  }
  const auto refused = (*waits)->Next(Later());
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(refused->tag, 3u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused->pins.status()));
  EXPECT_THAT(WordsOf(refused->pins.status()), HasSubstr("the limit is 2"));
  held->pins->clear();
  EXPECT_EQ((*waits)->Next(Later())->tag, 1u);
  EXPECT_EQ(b.value, 1);
}

}  // namespace
}  // namespace terrace
