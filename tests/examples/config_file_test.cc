// --config: DeepSpeed's JSON under the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/match.h"
#include "examples/train_gpt/command_line/flags.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;

// The flags of a file of these members and of the arguments.
class ConfigFileTest : public testing::Test {
 protected:
  absl::StatusOr<Flags> Parse(const std::string& members,
                              std::vector<std::string> arguments = {}) {
    std::ofstream(path_) << "{" << members << "}";
    arguments.insert(arguments.end(), {"--config", path_});
    return ParseFlags(arguments);
  }

  // It names the file too.
  void ExpectError(const std::string& members,
                   const std::vector<std::string>& arguments,
                   const std::vector<std::string>& parts) {
    SCOPED_TRACE(members);
    const auto flags = Parse(members, arguments);
    ASSERT_FALSE(flags.ok());
    const std::string message(flags.status().message());
    EXPECT_THAT(message, HasSubstr(path_));
    for (const std::string& part : parts) {
      EXPECT_THAT(message, HasSubstr(part));
    }
  }

  TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/ds.json";
};

const char kMicro[] = "\"train_micro_batch_size_per_gpu\": 2";

std::string With(const std::string& members) {
  return std::string(kMicro) + ", " + members;
}

TEST_F(ConfigFileTest, ItsValuesBecomeFlags) {
  const auto flags = Parse(
      "\"train_batch_size\": 12, \"gradient_accumulation_steps\": 3, "
      "\"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": true}, "
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.25, "
      "\"betas\": [0.5, 0.75], \"eps\": 1e-6, \"weight_decay\": 0.125}}, "
      "\"zero_optimization\": {\"sub_group_size\": 100000, "
      "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
      "[\"/a\", \"/b\"], \"buffer_count\": 5}}");
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->batch, 4);
  EXPECT_EQ(flags->accumulate, 3);
  EXPECT_EQ(flags->clip, 0.5);
  EXPECT_EQ(flags->dtype, Dtype::kBFloat16);
  EXPECT_TRUE(flags->skip_nonfinite);
  EXPECT_EQ(flags->learning_rate, 0.25);
  EXPECT_EQ(flags->adam.beta1, 0.5);
  EXPECT_EQ(flags->adam.beta2, 0.75);
  EXPECT_EQ(flags->adam.epsilon, 1e-6);
  EXPECT_EQ(flags->adam.weight_decay, 0.125);
  EXPECT_EQ(flags->nvme_paths, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(flags->budget.percent, 10);
  EXPECT_EQ(flags->chunk_bytes, 100000 * 12 + 4096);
  EXPECT_EQ(terrace::LearningRateAt(flags->schedule, 7), 0.25);
  EXPECT_EQ(flags->notes.size(), 2u);  // of the two that Terrace sizes
}

TEST_F(ConfigFileTest, FlagsFillInWhatItLeavesToThem) {
  const auto flags = Parse(
      "\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": "
      "\"auto\", \"gradient_accumulation_steps\": \"auto\", "
      "\"gradient_clipping\": \"auto\", \"bf16\": {\"enabled\": \"auto\"}, "
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", "
      "\"weight_decay\": \"auto\"}}",
      {"--batch", "6", "--accumulate", "2", "--clip", "3", "--dtype", "bf16",
       "--learning-rate", "0.5"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->batch, 6);
  EXPECT_EQ(flags->accumulate, 2);
  EXPECT_EQ(flags->clip, 3);
  EXPECT_EQ(flags->dtype, Dtype::kBFloat16);
  EXPECT_EQ(flags->adam.learning_rate, 0.5);
  EXPECT_EQ(flags->adam.weight_decay, 0.01);  // as without a file
}

TEST_F(ConfigFileTest, WhatItDoesNotSayIsTheFlags) {
  const auto flags =
      Parse(kMicro, {"--accumulate", "4", "--clip", "0.25", "--learning-rate",
                     "0.125", "--memory-budget", "1MiB", "--nvme-path", "/a"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->batch, 2);
  EXPECT_EQ(flags->accumulate, 4);
  EXPECT_EQ(flags->clip, 0.25);
  EXPECT_EQ(flags->learning_rate, 0.125);
  EXPECT_EQ(flags->adam.beta2, 0.95);
  EXPECT_EQ(flags->budget.bytes, 1 << 20);
  EXPECT_EQ(terrace::LearningRateAt(flags->schedule, 1), 0.125);
}

TEST_F(ConfigFileTest, ABatchThatItDoesNotSayIsTheFlags) {
  const auto flags = Parse("", {"--batch", "3", "--accumulate", "5"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->batch, 3);
  EXPECT_EQ(flags->accumulate, 5);
}

TEST_F(ConfigFileTest, ABatchThatItDoesNotDivideIsDividedByTheFlags) {
  const std::string file = "\"train_batch_size\": 12";
  const auto batch = Parse(file, {"--batch", "3"});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->batch, 3);
  EXPECT_EQ(batch->accumulate, 4);
  const auto accumulate = Parse(file, {"--accumulate", "3"});
  ASSERT_TRUE(accumulate.ok()) << accumulate.status();
  EXPECT_EQ(accumulate->batch, 4);
  EXPECT_EQ(accumulate->accumulate, 3);
  const auto neither = Parse(file);
  ASSERT_TRUE(neither.ok()) << neither.status();
  EXPECT_EQ(neither->batch, 12);
  EXPECT_EQ(neither->accumulate, 1);
}

TEST_F(ConfigFileTest, WhatItsSectionsDoNotSayIsTheFlags) {
  const std::string file = With(
      "\"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": "
      "{\"type\": \"WarmupDecayLR\", \"params\": {}}");
  const auto flags =
      Parse(file, {"--learning-rate", "0.5", "--beta1", "0.25", "--epsilon",
                   "1e-6", "--weight-decay", "0.125", "--warmup-num-steps", "4",
                   "--warmup-min-lr", "0.125", "--warmup-max-lr", "0.75",
                   "--steps", "20"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->learning_rate, 0.5);
  EXPECT_EQ(flags->adam.beta1, 0.25);
  EXPECT_EQ(flags->adam.beta2, 0.999);  // the file's default, not the flag's
  EXPECT_EQ(flags->adam.epsilon, 1e-6);
  EXPECT_EQ(flags->adam.weight_decay, 0.125);
  EXPECT_EQ(flags->schedule.warmup_steps, 4);
  EXPECT_EQ(flags->schedule.least, 0.125);
  EXPECT_EQ(flags->schedule.most, 0.75);
  EXPECT_EQ(flags->schedule.total_steps, 20);
}

TEST_F(ConfigFileTest, ASchedulersStepsMayBeTheFlags) {
  const auto flags =
      Parse(With("\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                 "{\"total_num_steps\": \"auto\", \"warmup_num_steps\": 4, "
                 "\"warmup_max_lr\": \"auto\", \"warmup_type\": \"linear\"}}"),
            {"--steps", "10", "--learning-rate", "0.5"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(terrace::LearningRateAt(flags->schedule, 1), 0);
  EXPECT_NEAR(terrace::LearningRateAt(flags->schedule, 4), 0.25, 1e-15);
  EXPECT_NEAR(terrace::LearningRateAt(flags->schedule, 6), 0.5, 1e-15);
  EXPECT_NEAR(terrace::LearningRateAt(flags->schedule, 12), 0, 1e-15);
}

TEST_F(ConfigFileTest, EveryAutoOfAFileHasAFlagOrADefault) {
  const std::string file =
      "\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": "
      "\"auto\", \"gradient_accumulation_steps\": \"auto\", "
      "\"gradient_clipping\": \"auto\", \"optimizer\": {\"type\": \"AdamW\", "
      "\"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", "
      "\"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": "
      "\"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\", "
      "\"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", "
      "\"total_num_steps\": \"auto\", \"warmup_type\": \"linear\"}}, "
      "\"zero_optimization\": {\"stage\": 3, \"offload_param\": "
      "{\"device\": \"cpu\"}}";
  const auto plain = Parse(file, {"--steps", "10", "--learning-rate", "0.5"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->schedule.warmup_steps, 2);  // as of DeepSpeed's 0
  EXPECT_EQ(plain->schedule.least, 0);
  EXPECT_EQ(plain->schedule.most, 0.5);
  EXPECT_EQ(plain->schedule.total_steps, 10);

  const auto flags =
      Parse(file, {"--beta1", "0.5", "--beta2", "0.75", "--epsilon", "1e-6",
                   "--weight-decay", "0.125", "--warmup-num-steps", "4",
                   "--warmup-min-lr", "0.25", "--warmup-max-lr", "0.75"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->adam.beta1, 0.5);
  EXPECT_EQ(flags->adam.beta2, 0.75);
  EXPECT_EQ(flags->adam.epsilon, 1e-6);
  EXPECT_EQ(flags->adam.weight_decay, 0.125);
  EXPECT_EQ(flags->schedule.warmup_steps, 4);
  EXPECT_EQ(flags->schedule.least, 0.25);
  EXPECT_EQ(flags->schedule.most, 0.75);
}

TEST_F(ConfigFileTest, AdamsFlagsNeedNoFile) {
  const auto flags = ParseFlags({"--beta1", "0.5", "--weight-decay", "0"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->adam.beta1, 0.5);
  EXPECT_EQ(flags->adam.weight_decay, 0);
}

TEST_F(ConfigFileTest, FlagsOfTheOptimizerNeedIt) {
  const auto error = [](const std::vector<std::string>& arguments) {
    return std::string(ParseFlags(arguments).status().message());
  };
  EXPECT_THAT(error({"--warmup-num-steps", "3"}),
              HasSubstr("--warmup-num-steps needs --config"));
  EXPECT_THAT(error({"--beta1", "0.5", "--optimizer", "sgd"}),
              HasSubstr("--beta1 is for adamw"));
  ExpectError(kMicro, {"--warmup-num-steps", "3"},
              {"--warmup-num-steps needs a scheduler"});
  const std::string cosine = With(
      "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": "
      "{\"total_num_steps\": 9, \"warmup_num_steps\": \"auto\"}}");
  EXPECT_TRUE(Parse(cosine, {"--warmup-num-steps", "3"}).ok());
  ExpectError(cosine, {"--warmup-max-lr", "1"},
              {"--warmup-max-lr needs a scheduler"});
}

TEST_F(ConfigFileTest, AFlagThatContradictsItNamesBoth) {
  const std::string adam = With(
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5, "
      "\"betas\": [0.9, 0.999], \"eps\": 1e-8, \"weight_decay\": 0}}");
  const std::string nvme = With(
      "\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", "
      "\"nvme_path\": \"/a\"}}");
  const std::string cpu = With(
      "\"zero_optimization\": {\"offload_optimizer\": {\"device\": "
      "\"cpu\"}}");
  ExpectError(kMicro, {"--batch", "3"},
              {"--batch 3", "train_micro_batch_size_per_gpu", "gives 2"});
  ExpectError("\"train_batch_size\": 4", {"--batch", "3"},
              {"--batch 3", "train_batch_size 4"});
  ExpectError("\"train_batch_size\": 4", {"--batch=4", "--accumulate=2"},
              {"--batch 4 --accumulate 2", "train_batch_size 4"});
  ExpectError("\"train_batch_size\": 8, " + std::string(kMicro),
              {"--accumulate=2"},
              {"--accumulate 2", "train_batch_size", "gives 4"});
  ExpectError(With("\"gradient_accumulation_steps\": 5"), {"--accumulate=2"},
              {"--accumulate 2", "gradient_accumulation_steps", "5"});
  ExpectError(With("\"gradient_clipping\": 1"), {"--clip", "2"},
              {"--clip 2", "gradient_clipping 1"});
  ExpectError(adam, {"--learning-rate", "0.25"},
              {"--learning-rate 0.25", "optimizer.params.lr", "0.5"});
  ExpectError(adam, {"--beta2", "0.75"},
              {"--beta2 0.75", "optimizer.params.betas", "0.999"});
  ExpectError(adam, {"--epsilon", "0.5"},
              {"--epsilon", "optimizer.params.eps"});
  ExpectError(adam, {"--weight-decay", "0.5"},
              {"--weight-decay 0.5", "optimizer.params.weight_decay"});
  const std::string warmup = With(
      "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
      "{\"warmup_num_steps\": 5, \"warmup_min_lr\": 0, \"warmup_max_lr\": "
      "0.5}}");
  ExpectError(warmup, {"--warmup-num-steps", "4"},
              {"--warmup-num-steps 4", "scheduler.params.warmup_num_steps"});
  ExpectError(warmup, {"--warmup-min-lr", "0.25"},
              {"--warmup-min-lr 0.25", "scheduler.params.warmup_min_lr"});
  ExpectError(warmup, {"--warmup-max-lr", "0.25"},
              {"--warmup-max-lr 0.25", "scheduler.params.warmup_max_lr"});
  ExpectError(With("\"bf16\": {\"enabled\": true}"), {"--dtype", "fp32"},
              {"--dtype fp32", "bf16"});
  ExpectError(kMicro, {"--dtype", "bf16"}, {"--dtype bf16", "fp32"});
  ExpectError(nvme, {"--nvme-path", "/b"}, {"--nvme-path /b", "nvme_path /a"});
  ExpectError(cpu, {"--nvme-path", "/b"}, {"--nvme-path", "\"cpu\""});
  ExpectError(cpu, {"--memory-budget", "1MiB"}, {"--memory-budget", "\"cpu\""});
}

TEST_F(ConfigFileTest, AFlagThatAgreesIsNoContradiction) {
  const std::string members = With(
      "\"gradient_clipping\": 2, \"zero_optimization\": "
      "{\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
      "\"/a\"}}");
  EXPECT_TRUE(Parse(members, {"--clip", "2", "--batch", "2", "--dtype", "fp32",
                              "--nvme-path", "/a", "--memory-budget", "20%",
                              "--io-engine", "threads"})
                  .ok());
}

TEST_F(ConfigFileTest, WhatTrainGptIsNotIsRefused) {
  ExpectError(With("\"optimizer\": {\"type\": \"Lion\"}"), {}, {"Lion"});
  const auto sgd = Parse(kMicro, {"--optimizer", "sgd"});
  EXPECT_THAT(std::string(sgd.status().message()), HasSubstr("sgd"));
}

TEST_F(ConfigFileTest, Fp16BringsItsLossScale) {
  const auto flags =
      Parse(With("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8, "
                 "\"hysteresis\": 3, \"min_loss_scale\": 2}"),
            {});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->dtype, Dtype::kFloat16);
  EXPECT_TRUE(flags->skip_nonfinite);
  ASSERT_TRUE(flags->loss_scale.has_value());
  EXPECT_EQ(flags->loss_scale->initial, 256);
  EXPECT_EQ(flags->loss_scale->hysteresis, 3);
  EXPECT_EQ(flags->loss_scale->least, 2);
  EXPECT_FALSE(Parse(kMicro, {})->loss_scale.has_value());
}

TEST_F(ConfigFileTest, ADaemonOfTheFileHasWhatGoesToDisks) {
  const std::string state = "\"offload_optimizer\": {\"device\": \"nvme\"}";
  const std::string parameters =
      "\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}";
  const auto members = [](const std::string& zero) {
    return With(
        "\"terrace\": {\"daemon\": \"unix:/s\"}, "
        "\"zero_optimization\": {" +
        zero + "}");
  };
  const auto one = Parse(members(state), {});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->daemon, "unix:/s");
  EXPECT_TRUE(one->offloaded());
  EXPECT_FALSE(one->parameters_are_below());
  const auto other = Parse(members(parameters), {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->parameter_daemon, "unix:/s");
  EXPECT_FALSE(other->offloaded());
  const auto both = Parse(members(state + ", " + parameters), {});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(both->joined());
  for (const std::string& zero : {state, parameters}) {
    const auto refused = Parse(members(zero), {"--daemon", "unix:/other"});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()),
                testing::HasSubstr("terrace.daemon unix:/s"));
  }
  const auto job = Parse(members(parameters), {"--job", "night"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job, "night");
  const auto in_memory =
      Parse(With("\"zero_optimization\": {\"offload_optimizer\": "
                 "{\"device\": \"cpu\"}}"),
            {"--daemon", "unix:/s"});
  EXPECT_FALSE(in_memory.ok());
}

TEST_F(ConfigFileTest, ParametersGoWhereTheFileHasThem) {
  const std::string members = With(
      "\"zero_optimization\": {\"stage\": 3, \"offload_param\": "
      "{\"device\": \"nvme\", \"nvme_path\": \"/a\"}}");
  const auto flags = Parse(members, {});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->parameter_paths, std::vector<std::string>{"/a"});
  EXPECT_TRUE(flags->nvme_paths.empty());
  EXPECT_FALSE(flags->offloaded());
  EXPECT_FALSE(Parse(members, {"--memory-budget", "30%"})->offloaded());
  for (const char* paths : {"\"/a\"", "[\"/b\", \"/c\"]", "[\"/b\", \"/a\"]"}) {
    const auto both =
        Parse(With(std::string("\"zero_optimization\": {\"stage\": 3, "
                               "\"offload_param\": {\"device\": \"nvme\", "
                               "\"nvme_path\": \"/a\"}, \"offload_optimizer\": "
                               "{\"device\": \"nvme\", \"nvme_path\": ") +
                   paths + "}}"),
              {"--verify"});
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_TRUE(both->joined());
    EXPECT_EQ(both->parameter_paths, both->nvme_paths);
    EXPECT_THAT(both->nvme_paths, testing::Contains("/a").Times(1));
  }
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--nvme-path", "/b", "--save", "/b"},
        {"--nvme-path", "/b", "--pace", "1MB,0"},
        {"--tier", "dram=1MiB", "--tier", "nvme:/b"}}) {
    const auto refused = Parse(members, more);
    ASSERT_FALSE(refused.ok()) << more.back();
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("needs parameters in memory"));
  }
}

TEST_F(ConfigFileTest, ItsOwnMistakesAreNamedWithTheFile) {
  ExpectError("\"gradient_clipping\": -1", {}, {"gradient_clipping", "line 1"});
  ExpectError("\"train_batch_size\"", {}, {"not JSON"});
  const auto absent = ParseFlags({"--config", folder_.path() + "/none.json"});
  EXPECT_THAT(std::string(absent.status().message()),
              HasSubstr("none.json: cannot be read"));
  EXPECT_FALSE(ParseFlags({"--config", folder_.path()}).ok());
}

}  // namespace
}  // namespace train_gpt
