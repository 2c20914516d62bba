#include "bench/step.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/step_compute.h"
#include "optimizer/step/chunk_update.h"
#include "terrace/optimizer.h"
#include "tiers/memory/topology.h"

namespace terrace::bench {
namespace {

constexpr double kHighestRate = 1e9;  // bytes/s in each direction
constexpr int kStepsPerRound = 3;     // write-backs of one end in the next
constexpr double kLateShare = 0.01;
constexpr int kTries = 3;

struct Setting {
  int64_t parameters;
  int64_t budget_bytes;
  int threads;
  int rounds;
  bool json;
};

// A model and its optimizer on a paced device, or on one that is not.
class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(const Setting& setting,
                                                         int64_t rate) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(setting));
    Options options;
    options.host_budget_bytes = setting.budget_bytes;
    options.memory_paths = 1;
    options.memory_path_bytes = 9 * setting.parameters + (64 << 20);
    options.pace = {rate, rate};
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
        plan, ExecutorOf(bench->runtime_->thread_pool()),
        *bench->whole_chunks_);
    return bench;
  }

  // Mean seconds of consecutive steps.
  absl::StatusOr<double> Steps(int repeats, int steps) {
    repeating_->set_repeats(repeats);
    const ParameterData data{parameters_.data(), gradients_.data()};
    const double start = Seconds();
    for (int i = 0; i < steps; ++i) {
      TERRACE_RETURN_IF_ERROR(
          optimizer_->Step({}, {&data, 1}, absl::Now() + absl::Minutes(2)));
    }
    return (Seconds() - start) / steps;
  }

  double Compute(int repeats) { return compute_->Run(repeats); }
  Stats stats() const { return runtime_->GetStats(); }

 private:
  explicit Workbench(const Setting& setting)
      : parameters_(static_cast<size_t>(setting.parameters), 1.0f),
        gradients_(static_cast<size_t>(setting.parameters), 1e-3f) {}

  std::vector<float> parameters_, gradients_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RepeatedUpdate> repeated_, whole_chunks_;
  std::unique_ptr<RepeatingRuntime> repeating_;
  std::unique_ptr<ResidentCompute> compute_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

// What a row needs before it can be set up: bytes of a step in the busier
// direction, and compute without repetition and per repetition.
struct Calibration {
  double bytes = 0;
  double compute = 0;
  double repetition = 0;
};

absl::StatusOr<Calibration> Calibrate(const Setting& setting) {
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(setting, 0));
  TERRACE_RETURN_IF_ERROR(bench->Steps(0, 3).status());
  constexpr int kSteps = 5;
  const Stats before = bench->stats();
  TERRACE_RETURN_IF_ERROR(bench->Steps(0, kSteps).status());
  const Stats after = bench->stats();
  Calibration result;
  result.bytes = static_cast<double>(
                     std::max(after.bytes_read() - before.bytes_read(),
                              after.bytes_written() - before.bytes_written())) /
                 kSteps;
  constexpr int kRepeats = 4;
  std::vector<double> once, more;
  for (int i = 0; i < 5; ++i) {
    once.push_back(bench->Compute(0));
    more.push_back(bench->Compute(kRepeats));
  }
  result.compute = SpreadOf(once).median;
  // In cache it is quicker than the first pass, not eight times: a difference
  // of less is a busy machine's, and would ask for repetitions without end.
  result.repetition = std::max(
      result.compute / 8, (SpreadOf(more).median - result.compute) / kRepeats);
  return result;
}

// One row at (bytes / rate) / compute = `target`. False: void.
absl::StatusOr<bool> RunOnce(const Setting& setting,
                             const Calibration& calibration, double target,
                             bool last_try) {
  // As many repetitions as bring the rate down to what a device may have.
  const double least_compute = calibration.bytes / kHighestRate / target;
  const int repeats = static_cast<int>(
      std::ceil(std::max(0.0, least_compute - calibration.compute) /
                calibration.repetition));
  const double compute = calibration.compute + repeats * calibration.repetition;
  const auto rate = static_cast<int64_t>(
      std::min(kHighestRate, calibration.bytes / (target * compute)));
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(setting, rate));
  TERRACE_RETURN_IF_ERROR(bench->Steps(repeats, 2).status());
  const Stats before = bench->stats();
  const double moving = calibration.bytes / static_cast<double>(rate);
  std::vector<double> computes;
  const double millions = static_cast<double>(setting.parameters) / 1e6;
  Row row{.key = absl::StrFormat("step-%.1f", target), .unit = "Mparam/s"};
  row.subject = {"step", [&]() -> absl::StatusOr<double> {
                   // One step off the clock: then as much is under way at
                   // the start as at the end.
                   TERRACE_RETURN_IF_ERROR(bench->Steps(repeats, 1).status());
                   TERRACE_ASSIGN_OR_RETURN(
                       const double seconds,
                       bench->Steps(repeats, kStepsPerRound));
                   return millions / seconds;
                 }};
  row.bound = {"max(bytes/rate, compute)", [&]() -> absl::StatusOr<double> {
                 computes.push_back(bench->Compute(repeats));
                 return millions / std::max(moving, computes.back());
               }};
  TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(row, setting.rounds));
  const Stats after = bench->stats();
  const auto late =
      static_cast<double>(after.late_completions - before.late_completions);
  const double late_share =
      late / std::max<double>(1, static_cast<double>(after.paced_completions -
                                                     before.paced_completions));
  const bool valid = late_share <= kLateShare;
  if (!valid && !last_try) return false;
  PrintRow(
      row, result, setting.json,
      absl::StrFormat("\"step_over_bound\":%.4f,\"rate\":%d,\"bytes\":%.0f,"
                      "\"moving_seconds\":%.4f,\"compute_seconds\":%.4f,"
                      "\"repeats\":%d,\"late_share\":%.4f,\"void\":%s",
                      1 / result.ratio.median, rate, calibration.bytes, moving,
                      SpreadOf(computes).median, repeats, late_share,
                      valid ? "false" : "true"));
  if (!setting.json && !valid) {
    absl::PrintF("  void: %.1f %% of completions were late\n",
                 100 * late_share);
  }
  return valid;
}

}  // namespace

absl::Status RunStepBenchmark(const Flags& flags) {
  Setting setting;
  TERRACE_ASSIGN_OR_RETURN(setting.parameters,
                           flags.number("parameters", 16 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t percent, flags.number("budget", 10));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  // The device is memory and a timer: where kernels keep every core busy, its
  // completions are late and the row is void.
  TERRACE_ASSIGN_OR_RETURN(const Topology machine, ReadTopology());
  TERRACE_ASSIGN_OR_RETURN(
      const int64_t threads,
      flags.number(
          "threads",
          std::max<int64_t>(1, static_cast<int64_t>(machine.cpus.size()) - 1)));
  if (setting.parameters < 1 || percent < 1 || rounds < 1 || threads < 0) {
    return absl::InvalidArgumentError("a flag is out of range");
  }
  setting.budget_bytes = setting.parameters * 8 * percent / 100;
  setting.rounds = static_cast<int>(rounds);
  setting.threads = static_cast<int>(threads);
  setting.json = flags.has("json");
  TERRACE_ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(setting));
  PrintHeader(setting.json);
  int voids = 0;
  for (double target : {0.5, 1.0, 2.0, 8.0}) {
    bool valid = false;
    for (int i = 1; !valid && i <= kTries; ++i) {
      TERRACE_ASSIGN_OR_RETURN(
          valid, RunOnce(setting, calibration, target, i == kTries));
    }
    if (!valid) ++voids;
  }
  if (voids == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "%d rows are void: the machine was too busy to keep the device's time",
      voids));
}

}  // namespace terrace::bench
