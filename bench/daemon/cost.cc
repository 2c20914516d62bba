#include "bench/daemon/cost.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "bench/daemon/terraced_process.h"
#include "bench/step_workbench.h"
#include "terrace/runtime.h"

namespace terrace::bench {
namespace {

constexpr double kHighestRate = 200e6;  // bytes/s in each direction
constexpr int kStepsPerRound = 3;
constexpr int kFetches = 2000;

struct Setting {
  std::string path;
  StepSetting step;
  int rounds = 0;
  int64_t tensors = 0;
  int64_t idle_seconds = 0;
  bool json = false;
};

absl::StatusOr<Setting> Parse(const Flags& flags) {
  Setting setting;
  setting.path = flags.text("path", ".");
  TERRACE_ASSIGN_OR_RETURN(setting.step.parameters,
                           flags.number("parameters", 16 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(setting.tensors, flags.number("tensors", 1 << 20));
  TERRACE_ASSIGN_OR_RETURN(setting.idle_seconds, flags.number("idle", 10));
  if (setting.step.parameters < (1 << 20) || rounds < 1 || rounds > 1000 ||
      setting.tensors < 1 || setting.idle_seconds < 1) {
    return absl::InvalidArgumentError(
        "--parameters is at least 1M, --rounds 1 to 1000, --tensors and --idle "
        "at least 1");
  }
  setting.step.budget_bytes = setting.step.parameters * 8 / 10;
  setting.step.threads = 1;
  setting.rounds = static_cast<int>(rounds);
  setting.json = flags.has("json");
  return setting;
}

Options OverDaemon(const TerracedProcess& daemon) {
  Options options;
  options.daemon = daemon.address();
  return options;
}

// A directory of a runtime of this process, which goes with it.
class OwnDirectory {
 public:
  explicit OwnDirectory(const std::string& path)
      : path_(absl::StrCat(path, "/terrace-bench-own")) {
    std::filesystem::create_directory(path_);
  }
  ~OwnDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;

  Options options(int64_t rate) const {
    Options options;
    options.paths = {path_};
    options.pace = {rate, rate};
    return options;
  }

 private:
  const std::string path_;
};

Variant StepOf(const char* name, StepWorkbench& bench, int repeats,
               double millions) {
  return {name, [&bench, repeats, millions]() -> absl::StatusOr<double> {
            // One step off the clock: then as much is under way at the start
            // as at the end.
            TERRACE_RETURN_IF_ERROR(bench.Steps(repeats, 1).status());
            TERRACE_ASSIGN_OR_RETURN(const double seconds,
                                     bench.Steps(repeats, kStepsPerRound));
            return millions / seconds;
          }};
}

absl::Status RunStep(const Setting& setting, const OwnDirectory& own,
                     const StepCalibration& calibration, double target) {
  const int repeats = calibration.RepeatsFor(target, kHighestRate);
  const auto rate = static_cast<int64_t>(
      std::min(kHighestRate,
               calibration.bytes / (target * calibration.ComputeOf(repeats))));
  TERRACE_ASSIGN_OR_RETURN(
      const auto daemon,
      TerracedProcess::Start(setting.path,
                             absl::StrCat("pace = '", rate, "B/s'\n")));
  TERRACE_ASSIGN_OR_RETURN(
      const auto connected,
      StepWorkbench::Make(setting.step, OverDaemon(*daemon)));
  TERRACE_ASSIGN_OR_RETURN(
      const auto local, StepWorkbench::Make(setting.step, own.options(rate)));
  for (StepWorkbench* const each : {connected.get(), local.get()}) {
    TERRACE_RETURN_IF_ERROR(each->Steps(repeats, 2).status());
  }
  const double millions = static_cast<double>(setting.step.parameters) / 1e6;
  const Row row{
      .key = absl::StrFormat("step-%.1f", target),
      .unit = "Mparam/s",
      .subject = StepOf("over a daemon", *connected, repeats, millions),
      .bound = StepOf("in this process", *local, repeats, millions)};
  TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(row, setting.rounds));
  PrintRow(row, result, setting.json,
           absl::StrFormat("\"step_over_local\":%.4f,\"rate\":%d,"
                           "\"repeats\":%d",
                           1 / result.ratio.median, rate, repeats));
  return absl::OkStatus();
}

// A tensor that is in memory, asked for again and again.
class ResidentFetch {
 public:
  static absl::StatusOr<std::unique_ptr<ResidentFetch>> Make(Options options) {
    auto fetch = std::make_unique<ResidentFetch>();
    options.host_budget_bytes = 16 << 20;
    options.threads = 1;
    TERRACE_ASSIGN_OR_RETURN(fetch->runtime_, Runtime::Create(options));
    TensorSpec spec;
    spec.name = "resident";
    spec.size_bytes = 4096;
    TERRACE_ASSIGN_OR_RETURN(fetch->tensor_, fetch->runtime_->Register(spec));
    TERRACE_ASSIGN_OR_RETURN(fetch->queue_,
                             fetch->runtime_->OpenQueue(4096, 2, Later()));
    TERRACE_RETURN_IF_ERROR(fetch->Once(Access::kOverwrite));
    return fetch;
  }

  // Fetches a second; the median's.
  absl::StatusOr<double> Run() {
    std::vector<double> seconds;
    for (int i = 0; i < kFetches; ++i) {
      const double start = Seconds();
      TERRACE_RETURN_IF_ERROR(Once(Access::kRead));
      seconds.push_back(Seconds() - start);
    }
    return 1 / SpreadOf(seconds).median;
  }

 private:
  static absl::Time Later() { return absl::Now() + absl::Seconds(30); }

  absl::Status Once(Access access) {
    TERRACE_RETURN_IF_ERROR(queue_->Push({{tensor_, access}}, 0, Later()));
    TERRACE_ASSIGN_OR_RETURN(const Ready ready, queue_->Next(Later()));
    return ready.pins.status();
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RequestQueue> queue_;
  TensorId tensor_;
};

absl::Status RunFetch(const Setting& setting, const OwnDirectory& own,
                      const TerracedProcess& daemon) {
  TERRACE_ASSIGN_OR_RETURN(const auto connected,
                           ResidentFetch::Make(OverDaemon(daemon)));
  TERRACE_ASSIGN_OR_RETURN(const auto local,
                           ResidentFetch::Make(own.options(0)));
  const Row row{.key = "fetch",
                .unit = "fetches/s",
                .subject = {"over a daemon", [&] { return connected->Run(); }},
                .bound = {"in this process", [&] { return local->Run(); }}};
  TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(row, setting.rounds));
  PrintRow(
      row, result, setting.json,
      absl::StrFormat("\"fetch_us\":%.2f,\"local_fetch_us\":%.2f",
                      1e6 / result.subject.median, 1e6 / result.bound.median));
  if (!setting.json) {
    absl::PrintF("  a fetch takes %.1f us, in this process %.1f us\n",
                 1e6 / result.subject.median, 1e6 / result.bound.median);
  }
  return absl::OkStatus();
}

// Of a process, as /proc/PID/stat has it from the field after its name on.
std::vector<std::string> StatOf(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(") ");
  if (name == std::string::npos) return {};
  return absl::StrSplit(text.substr(name + 2), ' ');
}

int64_t Field(const std::vector<std::string>& stat, size_t number) {
  return number < stat.size() ? std::stoll(stat[number]) : 0;
}

double ProcessorSeconds(pid_t process) {
  const std::vector<std::string> stat = StatOf(process);
  return static_cast<double>(Field(stat, 11) + Field(stat, 12)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t ResidentBytesOf(pid_t process) {
  return Field(StatOf(process), 21) * sysconf(_SC_PAGESIZE);
}

// The memory that the daemon has shared is there before the tensors are.
absl::Status RunTensors(const Setting& setting, const TerracedProcess& daemon) {
  Options options = OverDaemon(daemon);
  options.host_budget_bytes = 16 << 20;
  options.threads = 1;
  TERRACE_ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  const int64_t before = ResidentBytesOf(daemon.pid());
  const double start = Seconds();
  constexpr int64_t kAtATime = 16384;
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < setting.tensors;) {
    specs.clear();
    for (; i < setting.tensors && std::ssize(specs) < kAtATime; ++i) {
      TensorSpec& spec = specs.emplace_back();
      spec.name = absl::StrCat("layers.", i, ".weight");
      spec.size_bytes = 1;
    }
    TERRACE_RETURN_IF_ERROR(runtime->Register(specs).status());
  }
  const double seconds = Seconds() - start;
  const auto count = static_cast<double>(setting.tensors);
  const double bytes =
      static_cast<double>(ResidentBytesOf(daemon.pid()) - before) / count;
  const double used =
      ProcessorSeconds(daemon.pid()) + ProcessorSeconds(getpid());
  absl::SleepFor(absl::Seconds(setting.idle_seconds));
  const double share =
      (ProcessorSeconds(daemon.pid()) + ProcessorSeconds(getpid()) - used) /
      static_cast<double>(setting.idle_seconds);
  const double us = 1e6 * seconds / count;
  if (setting.json) {
    absl::PrintF(
        "{\"key\":\"tensors\",\"unit\":\"bytes\",\"tensors\":%d,"
        "\"measured\":[%.0f,%.0f,%.0f],\"us_a_tensor\":%.2f,"
        "\"idle_share\":%.5f}\n",
        setting.tensors, bytes, bytes, bytes, us, share);
  } else {
    absl::PrintF(
        "  %d tensors: %.0f bytes of the daemon each, %.2f us; idle, both "
        "processes take %.3f %% of a processor\n",
        setting.tensors, bytes, us, 100 * share);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDaemonCost(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const Setting setting, Parse(flags));
  const OwnDirectory own(setting.path);
  StepCalibration calibration;
  {
    TERRACE_ASSIGN_OR_RETURN(const auto bench,
                             StepWorkbench::Make(setting.step, own.options(0)));
    TERRACE_ASSIGN_OR_RETURN(calibration, Calibrate(*bench));
  }
  PrintHeader(setting.json);
  for (const double target : {1.0, 2.0}) {
    TERRACE_RETURN_IF_ERROR(RunStep(setting, own, calibration, target));
  }
  // Each tensor takes two blocks of 4 KiB there.
  const int64_t gib = 1 + (setting.tensors >> 16) / 2;
  TERRACE_ASSIGN_OR_RETURN(
      const auto daemon,
      TerracedProcess::Start(setting.path, "", absl::StrCat(gib, "GiB")));
  TERRACE_RETURN_IF_ERROR(RunFetch(setting, own, *daemon));
  return RunTensors(setting, *daemon);
}

}  // namespace terrace::bench
