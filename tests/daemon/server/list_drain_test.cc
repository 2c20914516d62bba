// `terrace ls` and `terrace drain` against a daemon that runs.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Lines = std::vector<nlohmann::json>;

ChildResult RunTerrace(const RunningDaemon& daemon, const std::string& what,
                       const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {TERRACE_PROGRAM, what, "--daemon",
                                      absl::StrCat("unix:", daemon.socket())};
  command.insert(command.end(), options.begin(), options.end());
  return ChildProcess(command).Wait();
}

Lines ListOf(const RunningDaemon& daemon) {
  const ChildResult result = RunTerrace(daemon, "ls", {"--json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const std::vector<std::string> lines =
      absl::StrSplit(result.output, '\n', absl::SkipEmpty());
  Lines all;
  for (const std::string& line : lines) {
    all.push_back(nlohmann::json::parse(line));
  }
  return all;
}

TEST(ListTest, EachTensorIsListedOnceWithItsState) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  EXPECT_TRUE(ListOf(daemon).empty());
  auto night = ConnectAs(daemon, 1 << 20, "night");
  auto day = ConnectAs(daemon, 1 << 20, "day");
  ASSERT_TRUE(night.ok() && day.ok());
  // More than a page has, of one job; with gaps.
  std::vector<TensorId> tensors;
  for (int i = 0; i < 400; ++i) {
    tensors.push_back(*RegisterOf(**night, absl::StrCat("n", i), 4096));
  }
  for (int i = 100; i < 300; i += 2) {
    ASSERT_TRUE((*night)->Unregister(tensors[i]).ok());
  }
  const TensorId other = *RegisterOf(**day, "d", 5000);
  ASSERT_TRUE(FillOf(**day, other, 1));
  ASSERT_TRUE(FillOf(**night, tensors[1], 1));
  auto held = (*night)->Acquire(tensors[1], Access::kRead, Later());
  ASSERT_TRUE(held.ok()) << held.status();
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& each : ListOf(daemon)) {
    EXPECT_TRUE(by_name.emplace(each.at("name"), each).second) << each;
  }
  EXPECT_EQ(by_name.size(), 301u);
  EXPECT_FALSE(by_name.contains("n100"));
  const auto& pinned = by_name.at("n1");
  EXPECT_EQ(pinned.at("job"), "night");
  EXPECT_EQ(pinned.at("uid"), getuid());
  EXPECT_EQ(pinned.at("process"), getpid());
  EXPECT_EQ(pinned.at("id"), tensors[1].value);
  EXPECT_EQ(pinned.at("size_bytes"), 4096);
  EXPECT_EQ(pinned.at("state"), "pinned");
  EXPECT_EQ(pinned.at("tier"), "dram");
  EXPECT_EQ(by_name.at("n399").at("state"), "unwritten");
  EXPECT_TRUE(by_name.at("n399").at("tier").is_null());
  EXPECT_EQ(by_name.at("d").at("job"), "day");
  EXPECT_EQ(by_name.at("d").at("size_bytes"), 5000);
  const ChildResult text = RunTerrace(daemon, "ls");
  EXPECT_THAT(text.output, HasSubstr("\tpinned\tn1\n"));
}

// What does not fit in memory is below.
TEST(ListTest, ATensorIsWhereItsNewestContentsAre) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20);
  ASSERT_TRUE(job.ok()) << job.status();
  for (int i = 0; i < 40; ++i) {
    const auto id = RegisterOf(**job, absl::StrCat("t", i), 64 << 10);
    ASSERT_TRUE(id.ok() && FillOf(**job, *id, 1));
  }
  int above = 0;
  int below = 0;
  for (const auto& each : ListOf(daemon)) {
    const std::string tier = each.at("tier");
    (tier == "dram" ? above : below) += 1;
    if (tier != "dram") {
      EXPECT_TRUE(absl::StartsWith(tier, "nvme:")) << tier;
      EXPECT_EQ(each.at("state"), "clean");
    }
  }
  EXPECT_EQ(above + below, 40);
  EXPECT_LE(above, 15);  // of 68 KiB, in 1 MiB
}

TEST(ListTest, ARuntimeThatDoesNotAnswerHoldsUpNobody) {
  RunningDaemon daemon("drain_seconds = 1\n");
  ASSERT_TRUE(daemon.Serves());
  auto one = ConnectAs(daemon, 1 << 20, "one");
  auto two = ConnectAs(daemon, 1 << 20, "two");
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_TRUE(RegisterOf(**one, "a", 4096).ok());
  ASSERT_TRUE(RegisterOf(**two, "b", 4096).ok());
  const std::vector<pid_t> movers = ThreadsNamed(daemon.pid(), "terrace-mover");
  ASSERT_EQ(movers.size(), 3u);
  const StoppedThread stopped(movers[1]);
  if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
  const ChildResult result = RunTerrace(daemon, "ls");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("does not answer"));
  EXPECT_THAT(result.output, HasSubstr("\tb\n"));
  EXPECT_TRUE(daemon.Status().ok());
}

TEST(ListTest, WhoGoesWhileItWaitsLeavesNothing) {
  RunningDaemon daemon("drain_seconds = 1\n");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20);
  ASSERT_TRUE(job.ok());
  const StoppedThread stopped(
      ThreadsNamed(daemon.pid(), "terrace-mover").back());
  if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
  for (int i = 0; i < 20; ++i) {
    auto socket = PacketSocket::Connect(daemon.socket(), Soon());
    ASSERT_TRUE(socket.ok()) << socket.status();
    const auto bytes = Encode({.sequence = 1, .body = TensorsRequest()});
    ASSERT_TRUE(socket->Send(*bytes).ok());
  }
  EXPECT_TRUE(daemon.WaitUntil([&] {
    const auto status = daemon.Status();
    return status.ok() && status->users.at(0).connections == 2;  // the job's
  }));
}

TEST(DrainTest, NoNewJobsAndTheOthersGoOn) {
  const TemporaryDirectory directory;
  const std::string metrics = directory.path() + "/m";
  RunningDaemon daemon(absl::StrCat("metrics = 'unix:", metrics, "'\n"));
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20, "old");
  ASSERT_TRUE(job.ok()) << job.status();
  const ChildResult result = RunTerrace(daemon, "drain");
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output, "draining: 1 processes of jobs are still here\n");
  const absl::Status refused = ConnectAs(daemon, 1 << 20, "new").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("drains"));
  EXPECT_EQ(daemon.Status()->phase, "draining");
  const HttpAnswer ready = Get(metrics, "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, "draining\n");
  EXPECT_EQ(SamplesOf(Get(metrics, "/metrics").body)
                .at("terrace_phase{phase=\"draining\"}"),
            1);
  const TensorId a = *RegisterOf(**job, "a", 4096);
  EXPECT_TRUE(FillOf(**job, a, 1));
  EXPECT_TRUE(Holds(**job, a, 1));
  EXPECT_EQ(daemon.End().exit_code, 0);
}

TEST(DrainTest, AtTheDeadlineTheOthersEnd) {
  RunningDaemon daemon("");
  ASSERT_TRUE(daemon.Serves());
  auto job = ConnectAs(daemon, 1 << 20);
  ASSERT_TRUE(job.ok()) << job.status();
  const ChildResult drained =
      RunTerrace(daemon, "drain", {"--deadline", "1", "--json"});
  EXPECT_EQ(drained.exit_code, 0) << drained.errors;
  const auto json = nlohmann::json::parse(drained.output, nullptr, false);
  EXPECT_EQ(json.at("phase"), "draining");
  EXPECT_EQ(json.at("processes"), 1);
  EXPECT_TRUE(RegisterOf(**job, "a", 4096).ok());
  EXPECT_TRUE(daemon.WaitUntil([&] { return UsedMemory(daemon) == 0; }));
  EXPECT_TRUE(absl::IsUnavailable(RegisterOf(**job, "b", 4096).status()));
  EXPECT_EQ(daemon.Status()->phase, "draining");  // and it still answers
  EXPECT_EQ(RunTerrace(daemon, "drain", {"--deadline", "-1"}).exit_code, 2);
  EXPECT_EQ(RunTerrace(daemon, "drain", {"--deadline", "x"}).exit_code, 2);
}

// Whoever is no operator sees its own tensors alone, and drains nothing.
// Commands of a user who is neither root nor the daemon's, where the test is
// root's.
class OtherUserTest : public testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "it takes root to be two users";
    if (Run("4711", {"--version"}).exit_code != 0) {
      GTEST_SKIP() << TERRACE_PROGRAM << " is for one user";
    }
  }

  // `groups`: the first one is its own.
  static ChildResult Run(const std::string& groups,
                         const std::vector<std::string>& words) {
    std::vector<std::string> command = {
        "/usr/bin/setpriv", "--reuid=4711",
        absl::StrCat("--regid=", groups.substr(0, groups.find(','))),
        absl::StrCat("--groups=", groups), TERRACE_PROGRAM};
    command.insert(command.end(), words.begin(), words.end());
    return ChildProcess(command).Wait();
  }

  // With a job of root's, whose tensor is a secret.
  static std::unique_ptr<Runtime> Serve(RunningDaemon& daemon) {
    EXPECT_TRUE(daemon.Serves());
    for (const std::string& file : {daemon.config(), daemon.socket()}) {
      std::filesystem::permissions(std::filesystem::path(file).parent_path(),
                                   std::filesystem::perms(0711));
    }
    auto job = ConnectAs(daemon, 1 << 20, "night");
    EXPECT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(RegisterOf(**job, "secret", 4096).ok());
    EXPECT_EQ(ListOf(daemon).size(), 1u);
    return *std::move(job);
  }
};

TEST_F(OtherUserTest, AnotherUserSeesNothing) {
  RunningDaemon daemon("group = '4711'\noperators = '4713'\n");
  const auto job = Serve(daemon);
  const ChildResult listed =
      Run("4711,4712", {"ls", "--daemon", daemon.socket()});
  EXPECT_EQ(listed.exit_code, 0) << listed.errors;
  EXPECT_EQ(listed.output, "job\tprocess\tbytes\ttier\tstate\tname\n");
  const ChildResult drained =
      Run("4711,4712", {"drain", "--daemon", daemon.socket()});
  EXPECT_EQ(drained.exit_code, 1);
  EXPECT_THAT(drained.errors,
              HasSubstr("root, its own user and its operators"));
  EXPECT_EQ(daemon.Status()->phase, "serving");
}

TEST_F(OtherUserTest, AnOperatorMayWhatRootMay) {
  for (const char* groups : {"4711,4712,4713", "4713,4711"}) {
    RunningDaemon daemon("group = '4711'\noperators = '4713'\n");
    const auto job = Serve(daemon);
    const auto run = [&](std::vector<std::string> words) {
      words.insert(words.end(), {"--daemon", daemon.socket()});
      return Run(groups, words);
    };
    EXPECT_THAT(run({"ls"}).output, HasSubstr("secret"));
    EXPECT_THAT(run({"status"}).output, HasSubstr("uid 0: "));
    const ChildResult evicted = run({"evict", "night", "--user", "root"});
    EXPECT_EQ(evicted.exit_code, 0) << evicted.errors;
    const ChildResult drained = run({"drain"});
    EXPECT_EQ(drained.exit_code, 0) << drained.errors;
    EXPECT_EQ(daemon.Status()->phase, "draining");
  }
}

TEST_F(OtherUserTest, WithoutTheKeyAGroupHasNoOperators) {
  RunningDaemon daemon("group = '4711'\n");
  const auto job = Serve(daemon);
  const ChildResult drained =
      Run("4711,0", {"drain", "--daemon", daemon.socket()});
  EXPECT_EQ(drained.exit_code, 1) << drained.output;
}

}  // namespace
}  // namespace terrace
