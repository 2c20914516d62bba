#include "bench/step_paths.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aio/engine.h"
#include "kernels/pool_executor.h"
#include "runtime/base/status_macros.h"
#include "runtime/local_runtime.h"
#include "terrace/optimizer.h"
#include "tiers/disk_tier.h"
#include "tiers/host_arena.h"

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
        HostArena::Create({.size_bytes = state / 10 / 4096 * 4096}));
    TERRACE_ASSIGN_OR_RETURN(parts.executor, MakePoolExecutor(1, {}));
    parts.mover.io = std::make_unique<IoGroup>(
        MakePacedEngine(MakeMemoryEngine(2, device, SystemClock()),
                        bench->paces_, SystemClock()),
        SystemClock());
    for (int i = 0; i < 2; ++i) {
      auto disk = MakeMemoryDiskTier(i, device);
      TERRACE_RETURN_IF_ERROR(
          parts.mover.io
              ->AddPath(disk->info().file, disk->fd(), IoQueueOptions())
              .status());
      parts.mover.disks.push_back(std::move(disk));
    }
    parts.mover.eviction = MakeEvictionPolicy(EvictionKind::kNextUse);
    bench->runtime_ = LocalRuntime::Start(std::move(parts));
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
    sum_ = static_cast<double>(first + second);
  }
  double sum() const { return sum_; }

  // Bytes per second of that many steps, in each direction alone.
  absl::StatusOr<double> Steps(int steps) {
    const ParameterData data{parameters_.data(), gradients_.data()};
    const Stats before = runtime_->GetStats();
    const double start = Seconds();
    for (int i = 0; i < steps; ++i) {
      TERRACE_RETURN_IF_ERROR(
          optimizer_->Step({}, {&data, 1}, absl::Now() + absl::Minutes(2)));
    }
    const double seconds = Seconds() - start;
    const Stats after = runtime_->GetStats();
    return static_cast<double>(
               std::min(after.bytes_read() - before.bytes_read(),
                        after.bytes_written() - before.bytes_written())) /
           seconds;
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
  double sum_ = 0;
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

absl::Status RunOne(Workbench& bench, const char* key, Prepare prepare,
                    int rounds, bool json) {
  const Stats before = bench.stats();
  Row row{.key = key, .unit = "MiB/s"};
  row.subject = {"step", [&]() -> absl::StatusOr<double> {
                   TERRACE_RETURN_IF_ERROR(prepare(bench));
                   TERRACE_ASSIGN_OR_RETURN(const double rate, bench.Steps(1));
                   return rate / (1 << 20);
                 }};
  row.bound = {"sum of the rates", [&]() -> absl::StatusOr<double> {
                 return bench.sum() / (1 << 20);
               }};
  TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(row, rounds));
  const Stats after = bench.stats();
  const auto paced =
      static_cast<double>(after.paced_completions - before.paced_completions);
  const double late =
      static_cast<double>(after.late_completions - before.late_completions) /
      std::max(1.0, paced);
  PrintRow(row, result, json,
           absl::StrFormat("\"late_share\":%.4f,\"void\":%s", late,
                           late > kLateShare ? "true" : "false"));
  if (late <= kLateShare) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      key, ": ", 100 * late,
      " % of completions were late: the machine was too busy to keep time"));
}

}  // namespace

absl::Status RunStepPathsBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t parameters,
                           flags.number("parameters", 32 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  if (parameters < 1 << 20 || rounds < 1) {
    return absl::InvalidArgumentError("a flag is out of range");
  }
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(parameters));
  bench->SetRates(kFastRate, kSlowRate);
  TERRACE_RETURN_IF_ERROR(bench->Steps(kSettlingSteps).status());
  const bool json = flags.has("json");
  const int count = static_cast<int>(rounds);
  PrintHeader(json);
  absl::Status status = RunOne(*bench, "paths-3:1", Settle, count, json);
  status.Update(
      RunOne(*bench, "paths-1.5:1-second-step", HalveTheFast, count, json));
  status.Update(
      RunOne(*bench, "paths-3:0.5-second-step", HalveTheSlow, count, json));
  return status;
}

}  // namespace terrace::bench
