#include "bench/step_workbench.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/harness.h"
#include "optimizer/step/chunk_update.h"

namespace terrace::bench {

absl::StatusOr<std::unique_ptr<StepWorkbench>> StepWorkbench::Make(
    const StepSetting& setting, Options options) {
  std::unique_ptr<StepWorkbench> bench(new StepWorkbench(setting.parameters));
  options.host_budget_bytes = setting.budget_bytes;
  options.threads = setting.threads;
  TERRACE_ASSIGN_OR_RETURN(bench->runtime_, Runtime::Create(options));
  const std::vector<ParameterSpec> specs = {
      {"p", DType::kFloat32, setting.parameters}};
  TERRACE_ASSIGN_OR_RETURN(
      const OptimizerPlan plan,
      OffloadedOptimizer::Plan(specs, {}, setting.budget_bytes));
  const int threads = bench->runtime_->thread_pool().size();
  // The optimizer splits a chunk when the pool is wide: then each task
  // repeats its share.
  const int tasks = RangesPerChunk(threads, static_cast<int>(plan.slots));
  bench->repeated_ =
      std::make_unique<RepeatedUpdate>(threads, plan.chunk_bytes / 8 / tasks);
  bench->repeating_ =
      std::make_unique<RepeatingRuntime>(*bench->runtime_, *bench->repeated_);
  TERRACE_ASSIGN_OR_RETURN(
      bench->optimizer_,
      OffloadedOptimizer::Create(*bench->repeating_, specs, {}));
  bench->whole_chunks_ =
      std::make_unique<RepeatedUpdate>(threads, plan.chunk_bytes / 8);
  bench->compute_ = std::make_unique<ResidentCompute>(
      plan, ExecutorOf(bench->runtime_->thread_pool()), *bench->whole_chunks_);
  return bench;
}

absl::StatusOr<double> StepWorkbench::Steps(int repeats, int steps) {
  repeating_->set_repeats(repeats);
  const ParameterData data{parameters_.data(), gradients_.data()};
  const double start = Seconds();
  for (int i = 0; i < steps; ++i) {
    TERRACE_RETURN_IF_ERROR(
        optimizer_->Step({}, {&data, 1}, absl::Now() + absl::Minutes(2)));
  }
  return (Seconds() - start) / steps;
}

int StepCalibration::RepeatsFor(double target, double highest_rate) const {
  const double least = bytes / highest_rate / target;
  return static_cast<int>(
      std::ceil(std::max(0.0, least - compute) / repetition));
}

absl::StatusOr<StepCalibration> Calibrate(StepWorkbench& bench) {
  TERRACE_RETURN_IF_ERROR(bench.Steps(0, 3).status());
  constexpr int kSteps = 5;
  const Stats before = bench.stats();
  TERRACE_RETURN_IF_ERROR(bench.Steps(0, kSteps).status());
  const Stats after = bench.stats();
  StepCalibration result;
  result.bytes = static_cast<double>(
                     std::max(after.bytes_read() - before.bytes_read(),
                              after.bytes_written() - before.bytes_written())) /
                 kSteps;
  constexpr int kRepeats = 4;
  std::vector<double> once, more;
  for (int i = 0; i < 5; ++i) {
    once.push_back(bench.Compute(0));
    more.push_back(bench.Compute(kRepeats));
  }
  result.compute = SpreadOf(once).median;
  // In cache it is quicker than the first pass, not eight times: a difference
  // of less is a busy machine's, and would ask for repetitions without end.
  result.repetition = std::max(
      result.compute / 8, (SpreadOf(more).median - result.compute) / kRepeats);
  return result;
}

}  // namespace terrace::bench
