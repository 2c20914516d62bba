#include "examples/train_gpt/report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/train_gpt/requirements.h"

namespace train_gpt {
namespace {

// Sums over the steps; the traffic from the second step on, since the first
// one's zero moments are made, not read.
struct Sums {
  StepRecord all;  // only its times are sums
  double traffic_steps = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double traffic_seconds = 0;  // of the optimizer in those steps
};

Sums SumOf(const RunReport& report) {
  Sums sums;
  for (const StepRecord& step : report.steps) {
    StepRecord& all = sums.all;
    all.seconds += step.seconds;
    all.text_seconds += step.text_seconds;
    all.model_seconds += step.model_seconds;
    all.optimizer_seconds += step.optimizer_seconds;
    all.update_seconds += step.update_seconds;
    all.other_seconds += step.other_seconds;
    all.blocked_read_seconds += step.blocked_read_seconds;
    all.blocked_write_seconds += step.blocked_write_seconds;
    all.blocked_space_seconds += step.blocked_space_seconds;
    if (step.step == 1) continue;
    sums.traffic_steps += 1;
    sums.bytes_read += static_cast<double>(step.bytes_read);
    sums.bytes_written += static_cast<double>(step.bytes_written);
    sums.traffic_seconds += step.optimizer_seconds;
  }
  return sums;
}

int64_t SkippedSteps(const RunReport& report) {
  return std::count_if(report.steps.begin(), report.steps.end(),
                       [](const StepRecord& step) { return step.skipped; });
}

double Percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

std::string Bytes(int64_t bytes) {
  return BytesText(static_cast<double>(bytes));
}

void AppendRow(std::string* table, const char* name, const std::string& value,
               const std::string& note) {
  absl::StrAppendFormat(table, "  %-26s %14s  %s\n", name, value, note);
}

void AppendTimes(const Sums& sums, std::string* table) {
  const StepRecord& all = sums.all;
  const auto row = [&](const char* name, double seconds, const char* note) {
    AppendRow(
        table, name, absl::StrFormat("%.3f s", seconds),
        absl::StrFormat("%5.1f %%  %s", Percent(seconds, all.seconds), note));
  };
  row("time", all.seconds, "of all steps");
  row("  model and text", all.model_seconds + all.text_seconds,
      "forward, backward");
  row("  update", all.update_seconds, "kernels running");
  row("  bookkeeping", all.other_seconds, "");
  row("  blocked by reads", all.blocked_read_seconds, "");
  row("  blocked by write-backs", all.blocked_write_seconds, "");
  row("  blocked by space", all.blocked_space_seconds, "");
  row("  sum of these",
      all.model_seconds + all.text_seconds + all.update_seconds +
          all.other_seconds + all.blocked_seconds(),
      "each from its own clock");
}

}  // namespace

std::string ProgressLine(const RunReport& report, const StepRecord& step,
                         int64_t steps, const terrace::Stats* stats) {
  std::string line = absl::StrFormat(
      "step %d/%d  loss %.4f  %.0f tokens/s  %.0f ms", step.step, steps,
      step.loss, static_cast<double>(report.tokens_per_step) / step.seconds,
      step.seconds * 1e3);
  if (step.skipped) {
    absl::StrAppend(&line, "  skipped: gradients are not finite");
    if (report.scales_losses()) {
      absl::StrAppendFormat(&line, " at scale %.10g", step.loss_scale);
    }
  }
  if (stats == nullptr) return line;
  int64_t disk_bytes = 0;
  for (const terrace::TierStats& path : stats->paths()) {
    disk_bytes += path.used_bytes;
  }
  absl::StrAppendFormat(
      &line,
      "  host %s  disk %s  blocked %.0f%% read %.0f%% write %.0f%% space",
      Bytes(stats->host.used_bytes), Bytes(disk_bytes),
      Percent(step.blocked_read_seconds, step.seconds),
      Percent(step.blocked_write_seconds, step.seconds),
      Percent(step.blocked_space_seconds, step.seconds));
  return line;
}

std::string SkippedText(const RunReport& report) {
  const int64_t skipped = SkippedSteps(report);
  if (skipped == 0) return "";
  return absl::StrFormat(
      "skipped: %d of %d steps, whose gradients were not finite\n", skipped,
      report.steps.size());
}

std::string SummaryTable(const RunReport& report) {
  const Sums sums = SumOf(report);
  const auto parameters = static_cast<double>(report.parameters);
  std::string table = "\n";
  AppendRow(&table, "optimizer state", Bytes(report.state_bytes),
            absl::StrFormat("%.1f times the budget",
                            static_cast<double>(report.state_bytes) /
                                static_cast<double>(report.budget_bytes)));
  AppendRow(&table, "arena, at most", Bytes(report.arena_peak_bytes),
            absl::StrCat("of a budget of ", Bytes(report.budget_bytes)));
  AppendRow(
      &table, "process, at most", Bytes(report.rss_peak_bytes),
      absl::StrFormat("%.1f bytes a parameter",
                      static_cast<double>(report.rss_peak_bytes) / parameters));
  if (sums.traffic_steps > 0) {
    const double per = parameters * sums.traffic_steps;
    AppendRow(&table, "read from disk",
              absl::StrFormat("%.3f B", sums.bytes_read / per),
              "a parameter and step, from the second step on");
    AppendRow(&table, "written to disk",
              absl::StrFormat("%.3f B", sums.bytes_written / per),
              "a parameter and step");
    const double rate =
        (sums.bytes_read + sums.bytes_written) / sums.traffic_seconds;
    AppendRow(&table, "disk in the optimizer",
              absl::StrCat(BytesText(rate), "/s"), "read and written together");
  }
  // 28 bytes a parameter and step: moments 16, and parameter 8 and gradient 4
  // in fp32, or master 8, parameter 2 and gradient 2.
  const double memory = 28 * parameters *
                        static_cast<double>(report.steps.size()) /
                        sums.all.update_seconds;
  AppendRow(&table, "memory in the update",
            absl::StrCat(BytesText(memory), "/s"),
            absl::StrFormat("%.0f %% of %s/s, a triad's",
                            Percent(memory, report.memory_bytes_per_second),
                            BytesText(report.memory_bytes_per_second)));
  AppendTimes(sums, &table);
  AppendRow(&table, "engine", report.engine,
            report.direct_io ? "direct I/O" : "through the page cache");
  if (!report.machine_profile.empty()) {
    const bool holds = report.machine_profile == "holds";
    AppendRow(&table, "machine profile", holds ? "holds" : "stale",
              holds ? "" : report.machine_profile);
  }
  return table;
}

std::string VerificationText(const Verification& v) {
  return absl::StrFormat(
      "verify: serial reference: %s (%d losses and %d parameters differ)\n"
      "verify: LibTorch AdamW: %s (loss by at most %.3g, parameters by %.3g "
      "of their L2 norm, both up to %.3g allowed; one by at most %.3g)\n",
      v.identical() ? "identical" : "DIFFERENT", v.losses_different,
      v.parameters_different, v.close() ? "close" : "TOO FAR",
      v.max_loss_difference, v.parameter_l2_difference,
      Verification::kTolerance, v.max_parameter_difference);
}

absl::Status CheckWritable(const std::string& path) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  const bool writable = std::ofstream(path, std::ios::app).good();
  if (writable && !existed) std::filesystem::remove(path, error);
  if (writable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--json: ", path, " cannot be written"));
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (file) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("--json: writing ", path, " failed"));
}

}  // namespace train_gpt
