// The program end to end with --config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::Contains;
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

// The report of a small run with that file, which is verified.
nlohmann::json Verified(const std::string& config, const std::string& steps) {
  TemporaryDirectory results;
  const std::string json = results.path() + "/run.json";
  const ChildResult run =
      RunTrainGpt(Smallest({"--steps", steps, "--verify", "--json", json,
                            "--config", results.Write("ds.json", config)}));
  EXPECT_EQ(run.exit_code, 0) << run.errors << run.output;
  nlohmann::json report = ReadJson(json);
  if (!report.is_object()) return nlohmann::json::object();  // it has failed
  EXPECT_EQ(report["verify"]["reference"], "identical");
  return report;
}

// All of the first steps, and some of more.
TEST(ConfigCommandTest, StepsThatOverflowAreSkippedAndVerified) {
  TemporaryDirectory disk;
  const std::string config =
      Config(Nvme(disk.path()) +
             ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 22, "
             "\"hysteresis\": 1, \"loss_scale_window\": 2}");
  const nlohmann::json few = Verified(config, "2");
  EXPECT_EQ(few.value("skipped", nlohmann::json()),
            nlohmann::json({true, true}));
  const nlohmann::json many = Verified(config, "16");
  ASSERT_TRUE(many.contains("skipped") && many.contains("loss_scales"));
  const std::vector<bool> skipped = many["skipped"];
  const std::vector<double> scales = many["loss_scales"];
  EXPECT_THAT(skipped, testing::AllOf(Contains(true), Contains(false)));
  ASSERT_EQ(scales.size(), 16u);
  double scale = 1 << 22;
  int good_steps = 0;
  for (size_t step = 0; step < scales.size(); ++step) {
    EXPECT_EQ(scales[step], scale) << step;
    if (skipped[step]) {
      scale /= 2;
      good_steps = 0;
    } else if (++good_steps == 3) {  // and every other one from there on
      scale *= 2;
      good_steps = 1;
    }
  }
}

// Rates at which a last bit of a gradient near 0 is far from the tolerance.
TEST(ConfigCommandTest, OtherAdamsFromDiskEqualTheReference) {
  TemporaryDirectory disk;
  const std::string start =
      "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": "
      "\"Adam\", \"params\": {\"lr\": 0.0003, \"weight_decay\": 0.1, ";
  const std::string cycle =
      ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": "
      "{\"cycle_min_lr\": 0.00003, \"cycle_max_lr\": 0.0003, "
      "\"cycle_first_step_size\": 3}}";
  std::vector<nlohmann::json> losses;
  for (const std::string& params : {std::string("\"adam_w_mode\": true}}"),
                                    std::string("\"adam_w_mode\": false}}"),
                                    std::string("\"bias_correction\": false}}"),
                                    "\"adam_w_mode\": true}}" + cycle}) {
    const nlohmann::json report =
        Verified(start + params + Nvme(disk.path()) + "}", "6");
    ASSERT_TRUE(report.contains("losses")) << params;
    for (const nlohmann::json& other : losses) {
      EXPECT_NE(report["losses"], other) << params;
    }
    losses.push_back(report["losses"]);
  }
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

TEST(ConfigCommandTest, ParametersAndStateOnDiskEqualTheReference) {
  TemporaryDirectory first, second;
  const auto place = [](const std::string& path) {
    return "{\"device\": \"nvme\", \"nvme_path\": \"" + path + "\"}";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {first.path() + "/", ""},
      {first.path(), ", \"bf16\": {\"enabled\": true}"},
      {second.path(),
       ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 20}"}};
  for (const auto& [path, precision] : cases) {
    const nlohmann::json report = Verified(
        Config(", \"zero_optimization\": {\"stage\": 3, \"offload_param\": " +
               place(first.path()) + ", \"offload_optimizer\": " + place(path) +
               "}" + precision),
        "6");
    ASSERT_TRUE(report.contains("bytes_written"));
    EXPECT_GT(report["bytes_written"][3], 0) << precision;
    EXPECT_TRUE(first.empty());
    EXPECT_TRUE(second.empty());
  }
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
      {Config(", \"zero_optimization\": {\"stage\": 3, \"offload_param\": "
              "{\"device\": \"nvme\", \"nvme_path\": \"/none/at/all\"}}"),
       "zero_optimization.offload_param: path '/none/at/all'"},
      {"", "not JSON"},
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
