#include "bench/step_tiers.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "aio/engine.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "bench/io/io_load.h"
#include "bench/rounds.h"
#include "kernels/pool_executor.h"
#include "runtime/local_runtime.h"
#include "terrace/optimizer.h"
#include "tests/support/medium/paced_medium.h"
#include "tests/support/medium/vector_medium.h"
#include "tests/support/pace_board.h"
#include "tiers/memory/host_arena.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace::bench {
namespace {

constexpr int64_t kMB = 1'000'000;
constexpr double kRoom = 1.3;  // of a tier's share
constexpr double kBar = 0.93;
constexpr int kSettlingSteps = 4;
// Most sleep for the media that they copy to.
constexpr int kThreads = 12;
constexpr absl::Duration kLate = absl::Milliseconds(1);
constexpr double kLateShare = 0.01;

struct PacedTier {
  TierKind kind = TierKind::kDisk;
  int64_t bytes_per_second = 0;  // in each direction alike
  bool is_file = false;          // plays persistent memory; else of memory
};

// Mapped tiers first.
struct Arrangement {
  const char* name;
  std::vector<PacedTier> tiers;
};

const Arrangement kArrangements[] = {
    {"far 400 + pmem 200 + disk 100 MB/s",
     {{TierKind::kFar, 400 * kMB},
      {TierKind::kPmem, 200 * kMB},
      {TierKind::kDisk, 100 * kMB}}},
    {"pmem (a file) 200 + disks 200 and 100 MB/s",
     {{TierKind::kPmem, 200 * kMB, true},
      {TierKind::kDisk, 200 * kMB},
      {TierKind::kDisk, 100 * kMB}}}};

int64_t SumOf(const Arrangement& arrangement) {
  int64_t sum = 0;
  for (const PacedTier& tier : arrangement.tiers) sum += tier.bytes_per_second;
  return sum;
}

// What mapped tiers were asked, and how often one answered late.
struct Lateness {
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> late = 0;
};

class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(
      const Arrangement& arrangement, const StepTiersOptions& options) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(options.parameters));
    // Slots for all tiers to be busy in both directions.
    const OptimizerOptions optimizer{.chunk_bytes = 512 << 10,
                                     .window_bytes = 16 << 20};
    const std::vector<ParameterSpec> specs = {
        {"p", DType::kFloat32, options.parameters}};
    const int64_t budget = RoundDown(8 * options.parameters / 10, kBlockBytes);
    TERRACE_ASSIGN_OR_RETURN(
        const OptimizerPlan plan,
        OffloadedOptimizer::Plan(specs, optimizer, budget));
    LocalRuntimeParts parts;
    parts.clock = &SystemClock();
    TERRACE_ASSIGN_OR_RETURN(parts.arena,
                             HostArena::Create({.size_bytes = budget}));
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                             MakePoolExecutor(kThreads, {}));
    parts.pool = MakeThreadPool(std::move(executor));
    TERRACE_RETURN_IF_ERROR(
        bench->AddTiers(arrangement, options, plan.disk_bytes, &parts));
    parts.eviction = MakeEvictionPolicy(EvictionKind::kNextUse);
    TERRACE_ASSIGN_OR_RETURN(bench->runtime_,
                             LocalRuntime::Start(std::move(parts)));
    TERRACE_ASSIGN_OR_RETURN(
        bench->optimizer_,
        OffloadedOptimizer::Create(*bench->runtime_, specs, optimizer));
    return bench;
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
  double LateShare() const {
    const Stats stats = runtime_->GetStats();
    const int64_t calls = stats.paced_completions + lateness_->calls;
    const int64_t late = stats.late_completions + lateness_->late;
    return static_cast<double>(late) /
           static_cast<double>(std::max<int64_t>(1, calls));
  }

 private:
  explicit Workbench(int64_t parameters)
      : parameters_(static_cast<size_t>(parameters), 1.0f),
        gradients_(static_cast<size_t>(parameters), 1e-3f) {}

  absl::Status AddTiers(const Arrangement& arrangement,
                        const StepTiersOptions& options, int64_t state_bytes,
                        LocalRuntimeParts* parts) {
    const auto board = std::make_shared<PaceBoard>(PaceOptions());
    int disks = 0;
    int64_t largest = 0;
    for (const PacedTier& tier : arrangement.tiers) {
      const double share = static_cast<double>(tier.bytes_per_second) /
                           static_cast<double>(SumOf(arrangement));
      const int64_t bytes = RoundUp(
          static_cast<int64_t>(
              std::ceil(kRoom * share * static_cast<double>(state_bytes))),
          kBlockBytes);
      const PaceOptions pace = {tier.bytes_per_second, tier.bytes_per_second};
      if (tier.kind != TierKind::kDisk) {
        TERRACE_RETURN_IF_ERROR(
            AddMapped(tier, bytes, options.pmem_path, pace, parts));
        continue;
      }
      board->Set(disks, pace);
      parts->paths.emplace_back().file = MakeMemoryDiskFile(disks++, bytes);
      largest = std::max(largest, bytes);
    }
    parts->engine = MakePacedEngine(
        MakeMemoryEngine(disks, largest, SystemClock()), board, SystemClock());
    return absl::OkStatus();
  }

  absl::Status AddMapped(const PacedTier& tier, int64_t bytes,
                         const std::string& pmem_path, const PaceOptions& pace,
                         LocalRuntimeParts* parts) {
    LocalMapped mapped;
    mapped.spec = {tier.kind, tier.kind == TierKind::kFar ? "node1" : pmem_path,
                   bytes};
    std::shared_ptr<Medium> medium;
    if (tier.is_file) {
      TERRACE_ASSIGN_OR_RETURN(medium,
                               PmemMedium::Open({.place = pmem_path,
                                                 .budget_bytes = bytes,
                                                 .unsafe_media = true}));
    } else {
      medium = std::make_shared<VectorMedium>(mapped.spec.place, bytes);
    }
    mapped.medium = std::make_shared<PacedMedium>(
        std::move(medium), pace, SystemClock(),
        [lateness = lateness_](absl::Time due) {
          absl::SleepFor(due - SystemClock().Now());
          ++lateness->calls;
          if (SystemClock().Now() - due > kLate) ++lateness->late;
        });
    parts->mapped.push_back(std::move(mapped));
    return absl::OkStatus();
  }

  std::vector<float> parameters_, gradients_;
  const std::shared_ptr<Lateness> lateness_ = std::make_shared<Lateness>();
  std::unique_ptr<LocalRuntime> runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

absl::Status AddRow(const Arrangement& arrangement,
                    const StepTiersOptions& options, Gate& gate,
                    Section* section) {
  TERRACE_ASSIGN_OR_RETURN(const auto bench,
                           Workbench::Make(arrangement, options));
  TERRACE_RETURN_IF_ERROR(bench->Steps(kSettlingSteps).status());
  const std::vector<Contender> contenders = {
      {arrangement.name, [&bench]() -> absl::StatusOr<Sample> {
         const Stopwatch watch;
         TERRACE_ASSIGN_OR_RETURN(const int64_t moved, bench->Steps(1));
         return watch.Stop(moved);
       }}};
  TERRACE_ASSIGN_OR_RETURN(const Rounds rounds,
                           Rounds::Run(contenders, options.rounds, gate));
  const Spread rates = rounds.Of(0, Figure::kRate);
  section->rates.push_back(
      {rounds.name(0), rates, rounds.Of(0, Figure::kCpu), ""});
  const double sum = static_cast<double>(SumOf(arrangement)) / kMiB;
  RatioRow row;
  row.subject = rounds.name(0);
  row.bound = "sum of the rates";
  row.figure = "MiB/s";
  row.ratio = {rates.minimum / sum, rates.median / sum, rates.maximum / sum};
  row.bar = Bar{kBar, true};
  const double late = bench->LateShare();
  row.note = absl::StrFormat("%.1f %% of completions were late", 100 * late);
  if (late > kLateShare) {
    row.void_reason = "the machine was too busy to keep time";
  }
  section->ratios.push_back(row);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureStepOverTiers(const StepTiersOptions& options,
                                             Gate& gate) {
  Section section;
  section.title = "A step over paced tiers";
  section.text = absl::StrFormat(
      "%d MiB of state, a tenth of it in memory; each tier below has room for "
      "1.3 of its share, and a pace for each direction. The file is on %s, and "
      "persists by msync. MiB and GiB are those of one direction.",
      8 * options.parameters / kMiB, options.pmem_path);
  for (const Arrangement& arrangement : kArrangements) {
    const absl::Status added = AddRow(arrangement, options, gate, &section);
    // A build without libpmem2 has the others.
    if (absl::IsUnimplemented(added)) {
      absl::StrAppend(&section.text, " ", added.message(), ".");
      continue;
    }
    TERRACE_RETURN_IF_ERROR(added);
  }
  return section;
}

}  // namespace terrace::bench
