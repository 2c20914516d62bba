#include "bench/step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/step_workbench.h"
#include "tiers/memory/topology.h"

namespace terrace::bench {
namespace {

constexpr double kHighestRate = 1e9;  // bytes/s in each direction
constexpr int kStepsPerRound = 3;     // write-backs of one end in the next
constexpr double kLateShare = 0.01;
constexpr int kTries = 3;

struct Setting {
  StepSetting step;
  int rounds;
  bool json;
};

// The device is memory; a rate of 0: it is not paced.
absl::StatusOr<std::unique_ptr<StepWorkbench>> WorkbenchAt(
    const Setting& setting, int64_t rate) {
  Options options;
  options.memory_paths = 1;
  options.memory_path_bytes = 9 * setting.step.parameters + (64 << 20);
  options.pace = {rate, rate};
  return StepWorkbench::Make(setting.step, options);
}

absl::StatusOr<StepCalibration> CalibrateUnpaced(const Setting& setting) {
  TERRACE_ASSIGN_OR_RETURN(const auto bench, WorkbenchAt(setting, 0));
  return Calibrate(*bench);
}

// One row at (bytes / rate) / compute = `target`. False: void.
absl::StatusOr<bool> RunOnce(const Setting& setting,
                             const StepCalibration& calibration, double target,
                             bool last_try) {
  const int repeats = calibration.RepeatsFor(target, kHighestRate);
  const double compute = calibration.ComputeOf(repeats);
  const auto rate = static_cast<int64_t>(
      std::min(kHighestRate, calibration.bytes / (target * compute)));
  TERRACE_ASSIGN_OR_RETURN(const auto bench, WorkbenchAt(setting, rate));
  TERRACE_RETURN_IF_ERROR(bench->Steps(repeats, 2).status());
  const Stats before = bench->stats();
  const double moving = calibration.bytes / static_cast<double>(rate);
  std::vector<double> computes;
  const double millions = static_cast<double>(setting.step.parameters) / 1e6;
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
  TERRACE_ASSIGN_OR_RETURN(setting.step.parameters,
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
  if (setting.step.parameters < 1 || percent < 1 || rounds < 1 || threads < 0) {
    return absl::InvalidArgumentError("a flag is out of range");
  }
  setting.step.budget_bytes = setting.step.parameters * 8 * percent / 100;
  setting.rounds = static_cast<int>(rounds);
  setting.step.threads = static_cast<int>(threads);
  setting.json = flags.has("json");
  TERRACE_ASSIGN_OR_RETURN(const StepCalibration calibration,
                           CalibrateUnpaced(setting));
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
