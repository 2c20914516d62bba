#include "bench/step_disk.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/raw_halves.h"
#include "bench/report/document.h"
#include "bench/rounds.h"
#include "bench/step_compute.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"

namespace terrace::bench {
namespace {

constexpr int kStepsPerRun = 3;
constexpr double kBar = 0.90;

struct Setting {
  std::string directory;
  int64_t parameters = 0;
  int64_t budget_bytes = 0;
  int threads = 0;
  int rounds = 0;
  GateOptions gate;
  bool json = false;
};

absl::StatusOr<Setting> Parse(const Flags& flags) {
  Setting setting;
  setting.directory = flags.text("path", ".");
  TERRACE_ASSIGN_OR_RETURN(setting.parameters,
                           flags.number("parameters", 64 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t percent, flags.number("budget", 10));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(const int64_t threads, flags.number("threads", 0));
  TERRACE_ASSIGN_OR_RETURN(const int64_t gate, flags.number("gate", 10));
  // A state of less than two transfers has nothing to measure.
  if (setting.parameters < (4 << 20) || percent < 1 || rounds < 1 ||
      rounds > 1000 || threads > 1000) {
    return absl::InvalidArgumentError(
        "--parameters is at least 4M, --budget at least 1, --rounds 1 to 1000");
  }
  setting.budget_bytes = setting.parameters * 8 * percent / 100;
  setting.rounds = static_cast<int>(rounds);
  setting.threads = static_cast<int>(threads);
  setting.gate.enabled = gate > 0;
  setting.gate.max_wait_seconds = static_cast<double>(gate);
  setting.json = flags.has("json");
  return setting;
}

// A model of one parameter and its optimizer, whose state is on the disk.
class DiskStep {
 public:
  static absl::StatusOr<std::unique_ptr<DiskStep>> Make(
      const Setting& setting) {
    auto step = std::unique_ptr<DiskStep>(new DiskStep(setting.parameters));
    const std::vector<ParameterSpec> specs = {
        {"p", DType::kFloat32, setting.parameters}};
    TERRACE_ASSIGN_OR_RETURN(
        step->plan_, OffloadedOptimizer::Plan(specs, {}, setting.budget_bytes));
    Options options;
    options.host_budget_bytes = step->plan_.window_bytes;
    options.paths = {setting.directory};
    options.threads = setting.threads;
    TERRACE_ASSIGN_OR_RETURN(step->runtime_, Runtime::Create(options));
    TERRACE_ASSIGN_OR_RETURN(step->optimizer_, OffloadedOptimizer::Create(
                                                   *step->runtime_, specs, {}));
    const int threads = step->runtime_->thread_pool().size();
    step->update_ =
        std::make_unique<RepeatedUpdate>(threads, step->plan_.chunk_bytes / 8);
    step->compute_ = std::make_unique<ResidentCompute>(
        step->plan_, ExecutorOf(step->runtime_->thread_pool()), *step->update_);
    return step;
  }

  // The bytes that `steps` steps moved.
  absl::StatusOr<int64_t> Run(int steps) {
    const int64_t before = moved();
    const ParameterData data{parameters_.data(), gradients_.data()};
    for (int i = 0; i < steps; ++i) {
      TERRACE_RETURN_IF_ERROR(
          optimizer_->Step({}, {&data, 1}, absl::Now() + absl::Minutes(5)));
    }
    return moved() - before;
  }

  void Compute() { compute_->Run(0); }
  const OptimizerPlan& plan() const { return plan_; }
  Stats stats() const { return runtime_->GetStats(); }

 private:
  explicit DiskStep(int64_t parameters)
      : parameters_(static_cast<size_t>(parameters), 1.0f),
        gradients_(static_cast<size_t>(parameters), 1e-3f) {}

  int64_t moved() const {
    const Stats stats = runtime_->GetStats();
    return stats.bytes_read() + stats.bytes_written();
  }

  std::vector<float> parameters_, gradients_;
  OptimizerPlan plan_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RepeatedUpdate> update_;
  std::unique_ptr<ResidentCompute> compute_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

std::vector<Contender> ContendersOf(DiskStep& step, RawHalves& raw,
                                    int64_t step_bytes) {
  const auto steps = [&step]() -> absl::StatusOr<Sample> {
    // One step off the clock: then as much is under way at the start as at
    // the end.
    TERRACE_RETURN_IF_ERROR(step.Run(1).status());
    const Stopwatch watch;
    TERRACE_ASSIGN_OR_RETURN(const int64_t moved, step.Run(kStepsPerRun));
    return watch.Stop(moved);
  };
  const auto loop = [&raw]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    TERRACE_ASSIGN_OR_RETURN(const int64_t moved, raw.Run());
    return watch.Stop(moved);
  };
  const auto compute = [&step, step_bytes]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    step.Compute();
    return watch.Stop(step_bytes);
  };
  return {{"step", steps},
          {absl::StrCat(raw.name(), ", reads and writes, 4 MiB x 2"), loop},
          {"compute of a step alone, in memory", compute}};
}

Section SectionOf(const DiskStep& step, const RawHalves& raw,
                  int64_t step_bytes, const Rounds& rounds) {
  Section section;
  const Stats stats = step.stats();
  section.title = "A step of the optimizer on the disk";
  section.text = absl::StrFormat(
      "%d parameters in fp32, %d MiB of state in %d chunks, all on the disk; a "
      "window of %d chunks, %d MiB, is all the memory. A step moves %d MiB; "
      "the "
      "raw loop as many, through %d MiB of memory. %s, %s, %s.",
      step.plan().parameters, step.plan().state_bytes / kMiB,
      step.plan().chunks, step.plan().slots, step.plan().window_bytes / kMiB,
      step_bytes / kMiB, raw.footprint() / kMiB, stats.engine,
      stats.host.buffers_registered ? "buffers registered"
                                    : "buffers not registered",
      !stats.paths().empty() && stats.paths()[0].disk.direct_io
          ? "O_DIRECT"
          : "through the page cache");
  for (int i = 0; i < rounds.size(); ++i) {
    section.rates.push_back({rounds.name(i), rounds.Of(i, Figure::kRate),
                             rounds.Of(i, Figure::kCpu), ""});
  }
  section.ratios.push_back({rounds.name(0), rounds.name(1), "MiB/s",
                            rounds.Ratio(0, 1, Figure::kRate), Bar{kBar, true},
                            "", ""});
  // Near 1: it is the processor that limits the step, not the disk.
  section.ratios.push_back({rounds.name(0), rounds.name(2), "MiB/s",
                            rounds.Ratio(0, 2, Figure::kRate), std::nullopt, "",
                            ""});
  return section;
}

}  // namespace

absl::Status RunStepOnDisk(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const Setting setting, Parse(flags));
  TERRACE_ASSIGN_OR_RETURN(const auto step, DiskStep::Make(setting));
  // The first step writes the state for the first time.
  TERRACE_RETURN_IF_ERROR(step->Run(2).status());
  TERRACE_ASSIGN_OR_RETURN(const int64_t moved, step->Run(kStepsPerRun));
  const int64_t step_bytes = moved / kStepsPerRun;
  TERRACE_ASSIGN_OR_RETURN(const auto raw,
                           RawHalves::Make(setting.directory, step_bytes / 2,
                                           step->plan().window_bytes));
  Gate gate(setting.gate);
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds rounds,
      Rounds::Run(ContendersOf(*step, *raw, step_bytes), setting.rounds, gate));
  PrintSection(SectionOf(*step, *raw, step_bytes, rounds), setting.json);
  return absl::OkStatus();
}

}  // namespace terrace::bench
