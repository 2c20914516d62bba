// The program end to end, with everything in memory.
#include "tests/examples/command.h"

#include <gtest/gtest.h>

namespace train_gpt {
namespace {

std::vector<std::string> Small(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"--size",  "tiny", "--batch",   "2",
                                        "--seq",   "32",   "--threads", "2",
                                        "--steps", "6"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void ExpectFalling(const std::vector<double>& losses, size_t steps) {
  ASSERT_EQ(losses.size(), steps);
  // ln 256 = 5.55 is the loss of a model that knows nothing.
  EXPECT_NEAR(losses.front(), 5.55, 0.2);
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(TrainGptTest, AFewStepsOnTheDefaultTextLearnSomething) {
  const ChildResult run = RunTrainGpt(Small({}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  ExpectFalling(LossesOf(run.output), 6);
}

TEST(TrainGptTest, BFloat16LearnsToo) {
  const ChildResult run = RunTrainGpt(Small({"--dtype", "bf16"}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  ExpectFalling(LossesOf(run.output), 6);
}

TEST(TrainGptTest, SgdLearns) {
  const ChildResult run =
      RunTrainGpt(Small({"--optimizer", "sgd", "--learning-rate", "0.3"}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const std::vector<double> losses = LossesOf(run.output);
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_LT(losses.back(), losses.front() - 0.3);
}

TEST(TrainGptTest, TheSameSeedGivesTheSameLosses) {
  const auto losses = [](const char* seed) {
    return LossesOf(RunTrainGpt(Small({"--seed", seed})).output);
  };
  const std::vector<double> first = losses("5");
  EXPECT_EQ(first.size(), 6u);
  EXPECT_EQ(first, losses("5"));
  EXPECT_NE(first, losses("6"));
}

TEST(TrainGptTest, AccumulatingIsABiggerBatch) {
  const ChildResult run = RunTrainGpt(Small({"--accumulate", "3"}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  ExpectFalling(LossesOf(run.output), 6);
}

}  // namespace
}  // namespace train_gpt
