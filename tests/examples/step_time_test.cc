// Where a step's time goes: text, model, update, bookkeeping and waiting, each
// from its own readings of the clock, add up to the step, on real runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/offloaded_optimizer.h"
#include "examples/train_gpt/state_plan.h"
#include "examples/train_gpt/trainer.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;

struct TimedStep {
  StepRecord record;
  terrace::StepReport report;
};

// Half a million parameters, four steps.
std::vector<TimedStep> TrainWith(const std::vector<std::string>& more) {
  TemporaryDirectory first, second;
  std::vector<std::string> arguments = {
      "--layers",        "2",      "--width",     "128",
      "--context",       "64",     "--batch",     "4",
      "--threads",       "2",      "--steps",     "4",
      "--memory-budget", "30%",    "--nvme-path", first.path(),
      "--data",          TRAIN_GPT};
  arguments.insert(arguments.end(), {"--nvme-path", second.path()});
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto flags = ParseFlags(arguments);
  EXPECT_TRUE(flags.ok()) << flags.status();
  const auto corpus = Corpus::Open(flags->data, flags->shape.vocab, 65);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  const auto plan = PlanOffload(*flags);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Gpt model(flags->shape, flags->dtype, flags->seed);
  auto runtime = terrace::Runtime::Create(plan->runtime);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  auto optimizer =
      OffloadedModelOptimizer::Create(*plan, *std::move(runtime), model);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  std::vector<TimedStep> steps;
  const absl::Status trained =
      Train(*flags, *corpus, model, **optimizer, [&](const StepRecord& record) {
        steps.push_back({record, (*optimizer)->last_report()});
        (*optimizer)->Complete(&steps.back().record);
        return absl::OkStatus();
      });
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_TRUE((*optimizer)->Close().ok());
  EXPECT_EQ(steps.size(), 4u);
  return steps;
}

// That a thread wakes another lies between two parts: on a busy machine that
// is a good part of the shortest steps and nothing of the long ones.
constexpr double kWakeSeconds = 1e-3;

// How much of a whole its parts, and a thread's wake, do not account for.
double Unaccounted(double whole, double parts) {
  const double rest = whole - parts;
  return (rest < 0 ? rest : std::max(0.0, rest - kWakeSeconds)) / whole;
}

// Parts are timed within their whole, so that they never add up to more; a
// piece without a clock is missing from every step, while a thread that is
// kept waiting between two readings of the clock is missing from one.
void ExpectSums(const std::vector<TimedStep>& steps) {
  double step_gap = 1, update_gap = 1, whole_gap = 1;
  for (const auto& [record, report] : steps) {
    SCOPED_TRACE(record.step);
    const double compute = record.text_seconds + record.model_seconds +
                           record.update_seconds + record.other_seconds;
    const double step =
        Unaccounted(record.seconds, compute + record.blocked_seconds());
    const double blocked = report.blocked_read_seconds +
                           report.blocked_write_seconds +
                           report.blocked_space_seconds;
    const double update =
        Unaccounted(report.total_seconds,
                    report.compute_seconds + report.other_seconds + blocked);
    const double whole =
        Unaccounted(record.optimizer_seconds, report.total_seconds);
    for (const double gap : {step, update, whole}) EXPECT_GE(gap, -0.02);
    step_gap = std::min(step_gap, step);
    update_gap = std::min(update_gap, update);
    whole_gap = std::min(whole_gap, whole);
    EXPECT_EQ(report.step, record.step);
    for (const double part :
         {record.text_seconds, record.model_seconds, record.update_seconds,
          record.other_seconds, record.blocked_read_seconds,
          record.blocked_write_seconds, record.blocked_space_seconds}) {
      EXPECT_GE(part, 0.0);
    }
  }
  EXPECT_LE(step_gap, 0.02);
  EXPECT_LE(update_gap, 0.02);
  EXPECT_LE(whole_gap, 0.04);
}

// The least and the greatest share of a step that it waited for its disk: a
// thread that is kept off the processor adds to the one or to the other part
// of a step or two, a wait that is not seen or made up is in all of them.
std::pair<double, double> BlockedShares(const std::vector<TimedStep>& steps) {
  std::vector<double> shares;
  for (const TimedStep& step : steps) {
    shares.push_back(step.record.blocked_seconds() / step.record.seconds);
  }
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return {*least, *most};
}

TEST(StepTimeTest, AddsUpWhenTheDiskIsTheSlowerPart) {
  // 3.3 MB of state, 70 % of it each way over two paths in half a second.
  const auto steps = TrainWith({"--pace", "2.5MB,2.5MB"});
  ExpectSums(steps);
  EXPECT_GT(BlockedShares(steps).second, 0.5);
}

TEST(StepTimeTest, AddsUpWhenTheModelIsTheSlowerPart) {
  const auto steps = TrainWith({"--accumulate", "4"});
  ExpectSums(steps);
  for (const TimedStep& step : steps) {
    EXPECT_GT(step.record.model_seconds, 0.0);
    EXPECT_GT(step.record.update_seconds, 0.0);
  }
}

TEST(StepTimeTest, NothingWaitsForADiskThatIsNotUsed) {
  const auto steps = TrainWith({"--memory-budget", "200%"});
  ExpectSums(steps);
  EXPECT_LT(BlockedShares(steps).first, 0.02);
}

TEST(StepTimeTest, AddsUpForSixteenBitParametersOnThreads) {
  ExpectSums(TrainWith({"--dtype", "bf16", "--io-engine", "threads"}));
}

}  // namespace
}  // namespace train_gpt
