// The program end to end, with the optimizer's state on disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/examples/command.h"
#include "tests/support/loop_device.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::LoopDevice;
using ::terrace::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Small(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"--size", "tiny", "--batch",   "1",
                                        "--seq",  "32",   "--threads", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Trains on two paths at a quarter of the state, verifies, and leaves the
// paths empty.
void TrainAndVerify(const char* dtype, const char* engine,
                    int64_t state_bytes_each) {
  TemporaryDirectory first, second, results;
  const std::string json_path = results.path() + "/run.json";
  const ChildResult run = RunTrainGpt(Small(
      {"--steps", "5", "--accumulate", "2", "--dtype", dtype, "--io-engine",
       engine, "--memory-budget", "25%", "--nvme-path", first.path(),
       "--nvme-path", second.path(), "--verify", "--json", json_path}));
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_TRUE(first.empty());
  EXPECT_TRUE(second.empty());
  const nlohmann::json json = ReadJson(json_path);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["verify"]["reference"], "identical");
  EXPECT_EQ(json["dtype"], dtype);
  const int64_t parameters = json["parameters"];
  EXPECT_EQ(json["state_bytes"], parameters * state_bytes_each);
  EXPECT_EQ(json["budget_bytes"], parameters * state_bytes_each / 4);
  EXPECT_LE(json["arena_peak_bytes"], json["budget_bytes"]);
  EXPECT_EQ(json["losses"].size(), 5u);
  EXPECT_LT(json["losses"][4], json["losses"][0]);
  for (const char* cause : {"read", "write", "space"}) {
    EXPECT_GE(json["blocked_seconds"][cause], 0.0) << cause;
  }
  // The first step makes its zeros; later ones read less than all.
  EXPECT_EQ(json["bytes_read"][0], 0);
  for (int step = 1; step < 5; ++step) {
    EXPECT_GT(json["bytes_read"][step], json["state_bytes"].get<int64_t>() / 2);
    EXPECT_LT(json["bytes_read"][step], json["state_bytes"]);
  }
}

TEST(OffloadedTrainGptTest, TiersHoldTheirBudgets) {
  TemporaryDirectory first, second, results;
  const std::string json_path = results.path() + "/run.json";
  const std::string small = "nvme:" + first.path();
  const std::string large = "nvme:" + second.path();
  const ChildResult run = RunTrainGpt(
      Small({"--steps", "4", "--tier", "dram=8MiB", "--tier", small + "=5MiB",
             "--tier", large, "--verify", "--json", json_path}));
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_TRUE(first.empty());
  EXPECT_TRUE(second.empty());
  const nlohmann::json json = ReadJson(json_path);
  EXPECT_EQ(json["verify"]["reference"], "identical");
  EXPECT_EQ(json["budget_bytes"], 8 << 20);
  ASSERT_EQ(json["tiers"].size(), 3u);
  const std::vector<std::string> names = {"dram", small, large};
  const std::vector<int64_t> budgets = {8 << 20, 5 << 20, 0};
  for (size_t i = 0; i < names.size(); ++i) {
    const nlohmann::json& tier = json["tiers"][i];
    EXPECT_EQ(tier["name"], names[i]);
    EXPECT_EQ(tier["kind"], i == 0 ? "dram" : "nvme");
    EXPECT_EQ(tier["budget_bytes"], budgets[i]);
    EXPECT_GT(tier["peak_bytes"], 0);
    if (budgets[i] > 0) {
      EXPECT_LE(tier["peak_bytes"], budgets[i]);
    }
  }
  ASSERT_EQ(json["links"].size(), 4u);
  int64_t read = 0;
  for (const nlohmann::json& link : json["links"]) {
    EXPECT_GT(link["bytes"], 0) << link;
    if (link["to"] == "dram") read += link["bytes"].get<int64_t>();
  }
  int64_t steps_read = 0;
  for (const int64_t bytes : json["bytes_read"]) steps_read += bytes;
  EXPECT_GE(read, steps_read);
}

TEST(OffloadedTrainGptTest, TiersThatCannotBeAreRefused) {
  TemporaryDirectory path;
  const std::string disk = "nvme:" + path.path();
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrongs = {
      {{"--tier", "tape:/dev/st0"}, "not 'tape'"},
      {{"--tier", "dram=64MiB"}, "nvme:/mnt/nvme0, are needed"},
      {{"--tier", disk}, "dram=2GiB, and one below it"},
      {{"--tier", "dram=8MiB", "--tier", "far:node1023=64MiB"},
       "tier 'far:node1023=64MiB': there is no node1023; this machine has "
       "node0"},
      {{"--tier", "dram:node1023=8MiB", "--tier", disk},
       "this machine has no memory node 1023; it has 0"},
      {{"--tier", "dram=8MiB", "--tier", disk, "--nvme-path", path.path()},
       "--tier and --nvme-path together"},
      {{"--tier", "dram=8MiB", "--tier", disk, "--memory-budget", "8MiB"},
       "--tier and --memory-budget together"},
      {{"--tier", "dram=8MiB", "--tier", disk, "--tier", "far:node1023"},
       "tier 'far:node1023': there is no node1023; this machine has node0"},
      {{"--tier", "dram=8MiB", "--tier", disk, "--tier", "hbm:cuda:0=1GiB"},
       "tier 'hbm:cuda:0=1GiB': the optimizer steps in memory"},
      {{"--tier", "dram=8MiB", "--tier", disk + "=1MiB"},
       "--tier: not enough room: " + path.path() + " (budget 1.0 MiB) has "},
      {{"--tier", "dram=4KiB", "--tier", disk}, "--tier: "},
      {{"--tier", "dram=8MiB", "--tier", disk + "/none"}, "--tier: path"},
  };
  for (const auto& [flags, why] : wrongs) {
    const ChildResult run = RunTrainGpt(Small(flags));
    EXPECT_NE(run.exit_code, 0) << why;
    EXPECT_THAT(run.errors, HasSubstr(why));
  }
  EXPECT_TRUE(path.empty());
}

TEST(OffloadedTrainGptTest, Fp32OnTheChosenEngineEqualsTheReference) {
  TrainAndVerify("fp32", "auto", 8);
}

// A file beside a directory, and a device alone: nothing of the state is
// anywhere else, and what was given stays.
TEST(OffloadedTrainGptTest, AGivenFileAndADirectoryEqualTheReference) {
  TemporaryDirectory first, second;
  const std::string file = first.Write("state", "");
  const ChildResult run = RunTrainGpt(
      Small({"--steps", "3", "--memory-budget", "25%", "--nvme-path", file,
             "--nvme-path", second.path(), "--verify"}));
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_THAT(run.output, HasSubstr("serial reference: identical"));
  EXPECT_THAT(run.output, HasSubstr("for --verify's copy"));
  EXPECT_TRUE(second.empty());
  EXPECT_THAT(first.Entries(), ElementsAre("state"));
}

TEST(OffloadedTrainGptTest, AGivenDeviceEqualsTheReference) {
  LoopDevice device(64 << 20);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const ChildResult run =
      RunTrainGpt(Small({"--steps", "3", "--memory-budget", "25%",
                         "--nvme-path", device.path(), "--verify"}));
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_THAT(run.output, HasSubstr("serial reference: identical"));
}

TEST(OffloadedTrainGptTest, Bf16OnThreadsEqualsTheReference) {
  TrainAndVerify("bf16", "threads", 12);
}

// Without a budget a path means what DeepSpeed's JSON means by one.
TEST(OffloadedTrainGptTest, APathAloneKeepsATenthInMemory) {
  TemporaryDirectory folder;
  const auto run = [&](std::vector<std::string> budget) {
    std::vector<std::string> flags = {"--steps", "1", "--nvme-path",
                                      folder.path()};
    flags.insert(flags.end(), budget.begin(), budget.end());
    const ChildResult result = RunTrainGpt(Small(flags));
    EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
    const size_t plan = result.output.find("optimizer state:");
    EXPECT_NE(plan, std::string::npos) << result.output;
    return result.output.substr(plan, result.output.find('\n', plan) - plan);
  };
  EXPECT_EQ(run({}), run({"--memory-budget", "10%"}));
  EXPECT_TRUE(folder.empty());
}

TEST(OffloadedTrainGptTest, AShareBelowTheMinimumIsRaisedAndTold) {
  TemporaryDirectory folder;
  const ChildResult run =
      RunTrainGpt(Small({"--steps", "2", "--memory-budget", "0.01%",
                         "--nvme-path", folder.path(), "--verify"}));
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_THAT(run.output, HasSubstr("(the least that works)"));
  EXPECT_THAT(run.output, HasSubstr("serial reference: identical"));
}

TEST(OffloadedTrainGptTest, MistakesEndWithOneLineAndLeaveNothing) {
  TemporaryDirectory folder;
  const std::string path = folder.path();
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--memory-budget", "1000", "--nvme-path", path}, "minimum of"},
      {{"--memory-budget", "10%", "--nvme-path", path + "/none"}, "/none"},
      {{"--memory-budget", "10%"}, "needs --nvme-path"},
      {{"--verify"}, "needs --nvme-path"},
      {{"--pace", "1MiB,0"}, "needs --nvme-path"},
      {{"--nvme-path", path, "--optimizer", "sgd"}, "sgd has no state"},
      {{"--memory-budget", "10%", "--nvme-path", path, "--json",
        path + "/none/x.json"},
       "cannot be written"},
      {{"--memory-budget", "10%", "--nvme-path", path, "--optimizer", "sgd"},
       "sgd has no state"},
  };
  for (const auto& [arguments, message] : wrong) {
    const ChildResult run = RunTrainGpt(Small(arguments));
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.errors, HasSubstr(message));
    EXPECT_EQ(run.errors.find('\n'), run.errors.size() - 1) << run.errors;
    EXPECT_TRUE(LossesOf(run.output).empty());
    EXPECT_TRUE(folder.empty());
  }
}

}  // namespace
}  // namespace train_gpt
