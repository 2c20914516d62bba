// The program end to end, with the optimizer's state at a host's daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::RunningDaemon;
using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;

std::vector<std::string> Small(std::vector<std::string> more) {
  std::vector<std::string> arguments = {
      "--layers",  "1",   "--heads", "2", "--width",   "32",
      "--vocab",   "256", "--batch", "1", "--seq",     "16",
      "--context", "16",  "--steps", "5", "--threads", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(DaemonTrainGptTest, StepsAreThoseOfASerialLoop) {
  RunningDaemon daemon(absl::StrCat("[users.", getuid(), ".jobs.night]\n",
                                    "tiers = ['dram=2MiB']\n"));
  ASSERT_TRUE(daemon.Serves());
  for (const char* dtype : {"fp32", "bf16"}) {
    TemporaryDirectory results;
    const std::string json_path = results.path() + "/run.json";
    const ChildResult run =
        RunTrainGpt(Small({"--daemon", "unix:" + daemon.socket(), "--job",
                           "night", "--memory-budget", "30%", "--dtype", dtype,
                           "--verify", "--json", json_path}));
    ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
    const nlohmann::json json = ReadJson(json_path);
    EXPECT_EQ(json["verify"]["reference"], "identical");
    EXPECT_GT(json["bytes_read"][4], 0);
    EXPECT_LE(json["arena_peak_bytes"], json["budget_bytes"]);
  }
  const auto status = daemon.Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->tiers.at(0).used_bytes, 0);
  EXPECT_EQ(daemon.End().exit_code, 0);
}

// Its service manager keeps what it has, and starts it again at once.
TEST(DaemonTrainGptTest, AKilledDaemonChangesNoBit) {
  RunningDaemon daemon("", {.keeps = true});
  TemporaryDirectory results;
  const std::string json_path = results.path() + "/run.json";
  ASSERT_TRUE(daemon.Serves());
  ChildProcess run(TrainGpt(
      Small({"--daemon", "unix:" + daemon.socket(), "--memory-budget", "30%",
             "--verify", "--json", json_path, "--steps", "150"})));
  ASSERT_TRUE(run.WaitForOutput("step 1/"));
  int kills = 0;
  for (; run.running() && kills < 20; ++kills) {
    ASSERT_TRUE(daemon.Serves());
    absl::SleepFor(absl::Milliseconds(7 * (kills % 9)));
    daemon.Kill(SIGKILL);
    daemon.Wait();
    daemon.Start();
  }
  const ChildResult& result = run.Wait();
  ASSERT_EQ(result.exit_code, 0) << result.errors << result.output;
  EXPECT_EQ(ReadJson(json_path)["verify"]["reference"], "identical");
  EXPECT_GT(kills, 3);
}

TEST(DaemonTrainGptTest, WhatIsAboveTheQuotaIsNamed) {
  RunningDaemon daemon("[quota.user]\ntiers = ['dram=64KiB']\n");
  ASSERT_TRUE(daemon.Serves());
  const ChildResult run = RunTrainGpt(
      Small({"--daemon", daemon.socket(), "--memory-budget", "256KiB"}));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.errors, HasSubstr("the limit is 65536"));
}

TEST(DaemonTrainGptTest, WhatTheDaemonSaysIsNotSaidTwice) {
  for (const std::vector<std::string>& beside :
       std::vector<std::vector<std::string>>{{"--nvme-path", "/tmp"},
                                             {"--tier", "dram=1MiB"},
                                             {"--io-engine", "threads"},
                                             {"--pace", "1,1"}}) {
    std::vector<std::string> arguments = {"--daemon", "unix:/nowhere/s"};
    arguments.insert(arguments.end(), beside.begin(), beside.end());
    const ChildResult run = RunTrainGpt(Small(arguments));
    EXPECT_EQ(run.exit_code, 2) << beside[0];
    EXPECT_THAT(run.errors, HasSubstr(beside[0]));
  }
  const ChildResult job = RunTrainGpt(Small({"--job", "night"}));
  EXPECT_EQ(job.exit_code, 2);
  EXPECT_THAT(job.errors, HasSubstr("--job needs --daemon"));
  const ChildResult nobody =
      RunTrainGpt(Small({"--daemon", "unix:/nowhere/s"}));
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.errors, HasSubstr("/nowhere/s"));
}

}  // namespace
}  // namespace train_gpt
