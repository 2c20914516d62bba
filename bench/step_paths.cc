#include "bench/step_paths.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "aio/engine.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/report/document.h"
#include "bench/rounds.h"
#include "kernels/pool_executor.h"
#include "runtime/local_runtime.h"
#include "terrace/optimizer.h"
#include "tests/support/pace_board.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {
namespace {

// Far below what memory and kernels do, so that the devices decide.
constexpr int64_t kFastRate = 300 << 20;
constexpr int64_t kSlowRate = 100 << 20;
constexpr int kSettlingSteps = 3;
constexpr double kLateShare = 0.01;

// A model, its optimizer and two devices in memory of changing pace.
class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(int64_t parameters) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(parameters));
    const int64_t state = 8 * parameters;
    const int64_t device = state + (64 << 20);
    LocalRuntimeParts parts;
    parts.clock = &SystemClock();
    TERRACE_ASSIGN_OR_RETURN(
        parts.arena,
        HostArena::Create({.size_bytes = RoundDown(state / 10, kBlockBytes)}));
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                             MakePoolExecutor(1, {}));
    parts.pool = MakeThreadPool(std::move(executor));
    parts.engine = MakePacedEngine(MakeMemoryEngine(2, device, SystemClock()),
                                   bench->paces_, SystemClock());
    for (int i = 0; i < 2; ++i) {
      parts.paths.emplace_back().file = MakeMemoryDiskFile(i, device);
    }
    parts.eviction = MakeEvictionPolicy(EvictionKind::kNextUse);
    TERRACE_ASSIGN_OR_RETURN(bench->runtime_,
                             LocalRuntime::Start(std::move(parts)));
    // Slots for both devices to be busy in both directions.
    const OptimizerOptions optimizer{.chunk_bytes = 512 << 10,
                                     .window_bytes = 16 << 20};
    TERRACE_ASSIGN_OR_RETURN(
        bench->optimizer_,
        OffloadedOptimizer::Create(
            *bench->runtime_, {{"p", DType::kFloat32, parameters}}, optimizer));
    return bench;
  }

  void SetRates(int64_t first, int64_t second) {
    paces_->Set(0, {first, first});
    paces_->Set(1, {second, second});
  }
  int64_t state_bytes() const {
    return 8 * static_cast<int64_t>(parameters_.size());
  }

  // What that many steps moved, of either direction alone.
  absl::StatusOr<int64_t> Steps(int steps) {
    const ParameterData data{parameters_.data(), gradients_.data()};
    const Stats before = runtime_->GetStats();
    for (int i = 0; i < steps; ++i) {
      TERRACE_RETURN_IF_ERROR(
          optimizer_->Step({}, {&data, 1}, absl::Now() + absl::Minutes(2)));
    }
    const Stats after = runtime_->GetStats();
    return std::min(after.bytes_read() - before.bytes_read(),
                    after.bytes_written() - before.bytes_written());
  }
  Stats stats() const { return runtime_->GetStats(); }

 private:
  explicit Workbench(int64_t parameters)
      : parameters_(static_cast<size_t>(parameters), 1.0f),
        gradients_(static_cast<size_t>(parameters), 1e-3f),
        paces_(std::make_shared<PaceBoard>(PaceOptions{kFastRate, kFastRate})) {
  }

  std::vector<float> parameters_, gradients_;
  const std::shared_ptr<PaceBoard> paces_;
  std::unique_ptr<LocalRuntime> runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

// What a row does in each round, before what it measures.
using Prepare = absl::Status (*)(Workbench& bench);

absl::Status Settle(Workbench& bench) {
  bench.SetRates(kFastRate, kSlowRate);
  return bench.Steps(kSettlingSteps).status();
}

absl::Status HalveTheFast(Workbench& bench) {
  TERRACE_RETURN_IF_ERROR(Settle(bench));
  bench.SetRates(kFastRate / 2, kSlowRate);
  return bench.Steps(1).status();  // the first step after the change
}

absl::Status HalveTheSlow(Workbench& bench) {
  TERRACE_RETURN_IF_ERROR(Settle(bench));
  bench.SetRates(kFastRate, kSlowRate / 2);
  return bench.Steps(1).status();
}

// Completions of the paced devices in the measured steps.
struct Lateness {
  int64_t paced = 0;
  int64_t late = 0;
  int64_t last_paced = 0;  // of the last run, which may not count
  int64_t last_late = 0;

  double share() const {
    return static_cast<double>(late) /
           static_cast<double>(std::max<int64_t>(1, paced));
  }
};

Contender ContenderOf(const char* name, Prepare prepare, Workbench* bench,
                      Lateness* lateness) {
  const auto run = [=]() -> absl::StatusOr<Sample> {
    TERRACE_RETURN_IF_ERROR(prepare(*bench));
    const Stats before = bench->stats();
    const Stopwatch watch;
    TERRACE_ASSIGN_OR_RETURN(const int64_t moved, bench->Steps(1));
    const Sample sample = watch.Stop(moved);
    const Stats after = bench->stats();
    lateness->last_paced = after.paced_completions - before.paced_completions;
    lateness->last_late = after.late_completions - before.late_completions;
    return sample;
  };
  return {name, run, [lateness] {
            lateness->paced += lateness->last_paced;
            lateness->late += lateness->last_late;
          }};
}

Spread Over(Spread rates, double bound) {
  return {rates.minimum / bound, rates.median / bound, rates.maximum / bound};
}

struct PathsRow {
  const char* name;
  Prepare prepare;
  int64_t sum;  // of the rates, while it is measured
  double bar;
};
constexpr PathsRow kRows[] = {
    {"300 + 100 MiB/s", Settle, kFastRate + kSlowRate, 0.95},
    {"150 + 100 MiB/s, the second step", HalveTheFast,
     kFastRate / 2 + kSlowRate, 0.90},
    {"300 + 50 MiB/s, the second step", HalveTheSlow, kFastRate + kSlowRate / 2,
     0.90}};

Section SectionOf(const Workbench& bench, const Rounds& rounds,
                  const std::vector<Lateness>& lateness, const Gate& gate) {
  Section section;
  section.title = "A step over two paced devices";
  section.text = absl::StrFormat(
      "%d MiB of state on two devices in memory, of 300 and 100 MiB/s in each "
      "direction; a tenth of it fits the budget. Before each run both have "
      "their full rate for %d steps; in the rows of a second step one slows to "
      "half then, and a step goes by. MiB and GiB are those of one direction. "
      "%d runs, %d of them disturbed.",
      bench.state_bytes() / kMiB, kSettlingSteps, gate.runs(),
      gate.disturbed());
  for (int i = 0; i < rounds.size(); ++i) {
    const PathsRow& row = kRows[i];
    const double late = lateness[static_cast<size_t>(i)].share();
    const Spread rates = rounds.Of(i, Figure::kRate);
    section.rates.push_back(
        {rounds.name(i), rates, rounds.Of(i, Figure::kCpu), ""});
    RatioRow ratio;
    ratio.subject = rounds.name(i);
    ratio.bound = "sum of the rates";
    ratio.figure = "MiB/s";
    ratio.ratio = Over(rates, static_cast<double>(row.sum) / kMiB);
    ratio.bar = Bar{row.bar, true};
    ratio.note =
        absl::StrFormat("%.1f %% of completions were late", 100 * late);
    if (late > kLateShare) {
      ratio.void_reason = "the machine was too busy to keep time";
    }
    section.ratios.push_back(ratio);
  }
  return section;
}

}  // namespace

absl::Status RunStepPathsBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t parameters,
                           flags.number("parameters", 32 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  if (parameters < 1 << 20 || rounds < 1) {
    return absl::InvalidArgumentError("a flag is out of range");
  }
  TERRACE_ASSIGN_OR_RETURN(const int64_t wait, flags.number("gate", 10));
  Gate gate(
      {.enabled = wait > 0, .max_wait_seconds = static_cast<double>(wait)});
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(parameters));
  TERRACE_RETURN_IF_ERROR(Settle(*bench));
  std::vector<Contender> contenders;
  std::vector<Lateness> lateness(std::size(kRows));
  for (size_t i = 0; i < std::size(kRows); ++i) {
    contenders.push_back(ContenderOf(kRows[i].name, kRows[i].prepare,
                                     bench.get(), &lateness[i]));
  }
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds result,
      Rounds::Run(contenders, static_cast<int>(rounds), gate));
  PrintSection(SectionOf(*bench, result, lateness, gate), flags.has("json"));
  for (const Lateness& each : lateness) {
    if (each.share() <= kLateShare) continue;
    return absl::UnavailableError("the machine was too busy to keep time");
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
