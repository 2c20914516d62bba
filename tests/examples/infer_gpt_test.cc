// infer_gpt end to end: weights below are those in memory, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/time/time.h"
#include "terrace/checkpoint.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::Not;

ChildResult RunInferGpt(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {INFER_GPT};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ChildProcess(command, {}).Wait();
}

// Its report; of a run that fails nothing.
nlohmann::json Infer(std::vector<std::string> arguments,
                     const std::string& text = INFER_GPT) {
  TemporaryDirectory results;
  const std::string path = results.path() + "/run.json";
  for (const std::string& more :
       {std::string("--threads"), std::string("1"), std::string("--data"), text,
        std::string("--json"), path}) {
    arguments.push_back(more);
  }
  const ChildResult run = RunInferGpt(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.errors << run.output;
  return ReadJson(path);
}

// In memory and at a share of it; the report of the latter.
nlohmann::json CompareWithMemory(std::vector<std::string> arguments,
                                 const std::string& budget,
                                 const std::string& text = INFER_GPT) {
  std::vector<std::string> plain = arguments;
  plain.emplace_back("--in-memory");
  const nlohmann::json memory = Infer(plain, text);
  TemporaryDirectory folder;
  for (const std::string& more : {std::string("--nvme-path"), folder.path(),
                                  std::string("--memory-budget"), budget}) {
    arguments.push_back(more);
  }
  nlohmann::json below = Infer(arguments, text);
  EXPECT_TRUE(folder.empty());
  EXPECT_TRUE(memory.is_object() && below.is_object());
  for (const char* const key : {"logits", "tokens", "loss", "parameters"}) {
    EXPECT_EQ(memory[key], below[key]) << key;
  }
  EXPECT_TRUE(memory["in_memory"]);
  EXPECT_FALSE(below["in_memory"]);
  return below;
}

class InferGptTest : public testing::TestWithParam<const char*> {};

TEST_P(InferGptTest, WeightsBelowGiveTheLogitsOfMemory) {
  const nlohmann::json below = CompareWithMemory(
      {"--dtype", GetParam(), "--rows", "2", "--seq", "24", "--passes", "3"},
      "20%");
  EXPECT_EQ(below["dtype"], GetParam());
  EXPECT_LT(below["budget_bytes"], below["weight_bytes"].get<int64_t>() * 0.7);
  EXPECT_LE(below["arena_peak_bytes"], below["budget_bytes"]);
  // They are written once; of those made last some after the others.
  EXPECT_LE(below["bytes_written"], below["budget_bytes"]);
  ASSERT_EQ(below["bytes_read"].size(), 3u);
  for (const int64_t read : below["bytes_read"]) {
    EXPECT_GT(read, below["weight_bytes"].get<int64_t>() / 4);
  }
  // From the second pass on the order is known.
  EXPECT_GT(below["fetches_ahead"], below["fetches"]);
  ASSERT_EQ(below["tokens"].size(), 2u);
  EXPECT_EQ(below["tokens"][0].size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, InferGptTest, testing::Values("fp32", "bf16"));

class InferGptCheckpointTest : public testing::TestWithParam<const char*> {};

TEST_P(InferGptCheckpointTest, WeightsOfTrainGptAreStreamed) {
  TemporaryDirectory folder;
  const std::string saved = folder.path() + "/saved";
  const std::string text =
      folder.Write("text", std::string(4096, 'a') + std::string(4096, 'b'));
  const ChildResult trained = RunTrainGpt(Smallest(
      {"--layers", "4", "--steps", "9", "--memory-budget", "50%", "--nvme-path",
       folder.path(), "--save", saved, "--data", text, "--dtype", GetParam()}));
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  const std::vector<std::string> arguments = {"--checkpoint", saved, "--seq",
                                              "16"};
  const nlohmann::json below = CompareWithMemory(arguments, "30%", text);
  EXPECT_EQ(below["dtype"], GetParam());
  // Trained, so that the text is less of a surprise.
  EXPECT_LT(below["loss"], 5.0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, InferGptCheckpointTest,
                         testing::Values("fp32", "bf16", "fp16"));

TEST(InferGptSeedTest, OtherWeightsGiveOtherLogits) {
  const nlohmann::json one = Infer({"--in-memory", "--passes", "1"});
  const nlohmann::json other =
      Infer({"--in-memory", "--passes", "1", "--seed", "2"});
  EXPECT_NE(one["logits"], other["logits"]);
}

TEST(InferGptMistakesTest, EachIsOneLine) {
  TemporaryDirectory folder;
  const std::string path = folder.path();
  const std::string text = folder.Write("text", std::string(100, 'a'));
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>>
      wrongs = {
          {{}, 2, "--nvme-path is needed"},
          {{"--in-memory", "--nvme-path", path}, 2, "--nvme-path together"},
          {{"--in-memory", "--memory-budget", "1MiB"}, 2, "together"},
          {{"--in-memry"}, 2, "did you mean --in-memory"},
          {{"--seq"}, 2, "--seq needs a value: N"},
          {{"--seq", "0"}, 2, "--seq takes a whole number from 1"},
          {{"--dtype", "fp8"}, 2, "--dtype is fp32|bf16, not 'fp8'"},
          {{"--size", "huge"}, 2, "--size is tiny"},
          {{"--memory-budget", "much"}, 2, "--memory-budget"},
          {{"--checkpoint", path, "--size", "mini", "--in-memory"},
           2,
           "--size is of random weights"},
          {{"--checkpoint", path, "--in-memory"}, 1, "--checkpoint " + path},
          {{"--in-memory", "--seq", "257"}, 1, "context of 256"},
          {{"--in-memory", "--data", path + "/none"}, 1, "/none"},
          {{"--in-memory", "--data", text, "--seq", "200"}, 1, "text"},
          {{"--in-memory", "--json", path + "/none/x.json"},
           1,
           "cannot be written"},
          {{"--nvme-path", path + "/none"}, 1, "/none"},
          {{"--nvme-path", path, "--memory-budget", "4KiB"},
           1,
           "--memory-budget 4096 is below the minimum of "},
      };
  for (const auto& [arguments, code, why] : wrongs) {
    const ChildResult run = RunInferGpt(arguments);
    EXPECT_EQ(run.exit_code, code) << why;
    EXPECT_THAT(run.errors, HasSubstr(why));
    EXPECT_EQ(run.errors.find('\n'), run.errors.size() - 1) << run.errors;
    EXPECT_THAT(run.output, Not(HasSubstr("pass ")));
    EXPECT_EQ(folder.Entries().size(), 1u) << why;
  }
}

TEST(InferGptMistakesTest, ACheckpointOfAnotherProgramIsNamed) {
  TemporaryDirectory folder;
  const std::string saved = folder.path() + "/saved";
  const auto written = terrace::SaveCheckpoint(
      saved, {.values = {{"--layers", int64_t{2}}}}, absl::InfiniteFuture());
  ASSERT_TRUE(written.ok()) << written.status();
  const ChildResult run = RunInferGpt({"--checkpoint", saved, "--in-memory"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.errors, HasSubstr("another program than train_gpt"));
  EXPECT_THAT(run.errors, HasSubstr("--heads"));
}

TEST(InferGptMistakesTest, ADamagedCheckpointIsNotRead) {
  TemporaryDirectory folder;
  const std::string saved = folder.path() + "/saved";
  const ChildResult trained =
      RunTrainGpt(Smallest({"--steps", "1", "--memory-budget", "50%",
                            "--nvme-path", folder.path(), "--save", saved}));
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  for (const auto& entry : std::filesystem::directory_iterator(saved)) {
    if (!entry.path().filename().string().starts_with("parameters-")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out);
    file.seekp(-9, std::ios::end);
    file.put('#');
  }
  const ChildResult run =
      RunInferGpt({"--checkpoint", saved, "--nvme-path", folder.path()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.errors, HasSubstr("parameters-"));
  EXPECT_THAT(run.output, Not(HasSubstr("pass ")));
  EXPECT_THAT(folder.Entries(), testing::ElementsAre("saved"));
}

TEST(InferGptHelpTest, NamesEveryFlag) {
  const ChildResult run = RunInferGpt({"--help"});
  EXPECT_EQ(run.exit_code, 0);
  for (const char* const flag : {"--size", "--checkpoint", "--memory-budget",
                                 "--nvme-path", "--in-memory", "--json"}) {
    EXPECT_THAT(run.output, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace train_gpt
