// The program end to end with --config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;

// A schedule that starts at 0, clips, skips and streams from disk.
std::string Config(const std::string& more) {
  return "{\"train_micro_batch_size_per_gpu\": 1, "
         "\"gradient_accumulation_steps\": 2, \"gradient_clipping\": 0.5, "
         "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, "
         "\"betas\": [0.8, 0.9], \"weight_decay\": 0.1}}, "
         "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
         "{\"total_num_steps\": \"auto\", \"warmup_num_steps\": 3, "
         "\"warmup_max_lr\": \"auto\", \"warmup_type\": \"linear\"}}" +
         more + "}";
}

std::string Nvme(const std::string& path) {
  return ", \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
         "{\"device\": \"nvme\", \"nvme_path\": \"" +
         path + "\", \"buffer_count\": 4}}";
}

void TrainAndVerify(const char* dtype, const std::string& precision) {
  TemporaryDirectory disk, results;
  const std::string config =
      results.Write("ds.json", Config(Nvme(disk.path()) + precision));
  const std::string json_path = results.path() + "/run.json";
  const ChildResult run =
      RunTrainGpt({"--size", "tiny", "--seq", "32", "--threads", "2", "--steps",
                   "6", "--config", config, "--verify", "--json", json_path});
  ASSERT_EQ(run.exit_code, 0) << run.errors << run.output;
  EXPECT_TRUE(disk.empty());
  const nlohmann::json json = ReadJson(json_path);
  ASSERT_TRUE(json.is_object());
  // The reference steps AdamW in memory with the file's numbers.
  EXPECT_EQ(json["verify"]["reference"], "identical");
  EXPECT_EQ(json["dtype"], dtype);
  const int64_t state = json["state_bytes"];
  EXPECT_EQ(json["budget_bytes"], state / 10);
  EXPECT_GT(json["bytes_read"][3], state / 2);
  // What is accepted but sized here is said.
  EXPECT_THAT(run.output,
              HasSubstr("zero_optimization.offload_optimizer.buffer_count: "
                        "accepted; sized by Terrace"));
}

TEST(ConfigCommandTest, Fp32FromDiskEqualsTheReference) {
  TrainAndVerify("fp32", "");
}

TEST(ConfigCommandTest, Bf16FromDiskEqualsTheReference) {
  TrainAndVerify("bf16", ", \"bf16\": {\"enabled\": true}");
}

// A scale that is no power of two.
TEST(ConfigCommandTest, Fp16FromDiskEqualsTheReference) {
  TrainAndVerify("fp16",
                 ", \"fp16\": {\"enabled\": true, \"loss_scale\": 100}");
}

TEST(ConfigCommandTest, ParametersOnDiskTrainAsInMemory) {
  TemporaryDirectory disk, results;
  const std::string place =
      "{\"device\": \"nvme\", \"nvme_path\": \"" + disk.path() + "\"}";
  const auto losses = [&](const std::string& zero) {
    const std::string config = results.Write(
        "ds.json",
        Config(", \"zero_optimization\": {\"stage\": 3" + zero + "}"));
    const ChildResult run =
        RunTrainGpt(Smallest({"--steps", "6", "--config", config}));
    EXPECT_EQ(run.exit_code, 0) << run.errors << run.output;
    return LossesOf(run.output);
  };
  const std::vector<double> memory = losses("");
  ASSERT_EQ(memory.size(), 6u);
  EXPECT_EQ(losses(", \"offload_param\": " + place), memory);
  EXPECT_TRUE(disk.empty());
}

TEST(ConfigCommandTest, TheScheduleIsFollowedInMemoryToo) {
  TemporaryDirectory results;
  const auto losses = [&](const std::string& config) {
    const ChildResult run = RunTrainGpt(Smallest(
        {"--steps", "6", "--config", results.Write("c.json", config)}));
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return LossesOf(run.output);
  };
  const std::string still =
      "{\"train_micro_batch_size_per_gpu\": 1, "
      "\"gradient_accumulation_steps\": 2, \"gradient_clipping\": 0.5, "
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0}}}";
  const std::vector<double> scheduled = losses(Config(""));
  const std::vector<double> untrained = losses(still);
  ASSERT_EQ(scheduled.size(), 6u);
  ASSERT_EQ(untrained.size(), 6u);
  // A warm-up from 0 leaves the parameters alone in its first two steps.
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(scheduled[step], untrained[step]) << step;
  }
  EXPECT_NE(scheduled[3], untrained[3]);
}

TEST(ConfigCommandTest, MistakesEndWithOneLineBeforeTraining) {
  TemporaryDirectory folder;
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 3, "
       "\"offload_param\": {\"device\": \"nvme\"}}}",
       "offload_param"},
      {"{\"train_batch_size\": 1, \"gradient_cliping\": 1}",
       "did you mean \"gradient_clipping\"?"},
      {Config(Nvme(folder.path() + "/none")), "/none"},
  };
  for (const auto& [config, message] : wrong) {
    const ChildResult run = RunTrainGpt(
        Smallest({"--steps", "1", "--config", folder.Write("c.json", config)}));
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.errors, HasSubstr(message));
    EXPECT_EQ(run.errors.find('\n'), run.errors.size() - 1) << run.errors;
    EXPECT_TRUE(LossesOf(run.output).empty());
  }
}

}  // namespace
}  // namespace train_gpt
