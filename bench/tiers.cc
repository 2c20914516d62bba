// Both sides copy the same bytes between the same two arenas, in pieces of
// 1 MiB, on the same threads: the transport with moves of 8 MiB, the loop with
// a task for each thread, which takes the next piece until none is left. So
// what the ratio shows is the transport's own cost: cutting, choosing, lanes,
// wakes.
#include "bench/tiers.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "bench/copies.h"
#include "bench/gate.h"
#include "bench/io/load.h"
#include "bench/report/document.h"
#include "bench/step_tiers.h"
#include "kernels/pool_executor.h"
#include "runtime/base/clock.h"
#include "runtime/base/status_macros.h"
#include "tiers/copy_transport.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPieceBytes = kMiB;

class ArenaMedium final : public Medium {
 public:
  explicit ArenaMedium(absl::Span<std::byte> bytes) : bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(bytes_.size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    std::memcpy(bytes_.data() + offset, from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  const std::string name_ = "memory";
  const absl::Span<std::byte> bytes_;
};

class Workbench {
 public:
  static absl::StatusOr<std::unique_ptr<Workbench>> Make(int64_t size_bytes) {
    auto bench = std::unique_ptr<Workbench>(new Workbench(size_bytes));
    for (auto* const arena : {&bench->dram_, &bench->tier_}) {
      TERRACE_ASSIGN_OR_RETURN(*arena,
                               HostArena::Create({.size_bytes = size_bytes}));
      std::memset((*arena)->bytes().data(), arena == &bench->dram_ ? 1 : 2,
                  static_cast<size_t>(size_bytes));
    }
    return bench;
  }

  absl::StatusOr<Sample> RunTransport(Executor& executor, Way way) {
    ArenaMedium medium(tier_->bytes());
    Signal ended;
    CopyTransport transport({{kCopiedTier, &medium}}, executor, SystemClock(),
                            [&ended] { ended.Set(); });
    return RunMoves(transport, ended, way, dram_->bytes());
  }

  absl::StatusOr<Sample> RunLoop(Executor& executor, Way way) {
    Signal ended;
    std::atomic<int64_t> next = 0;
    std::atomic<int> left = executor.parallelism();
    const auto loop = [&] {
      for (int64_t at; (at = next.fetch_add(kPieceBytes)) < size_bytes_;) {
        std::byte* const dram = dram_->bytes().data() + at;
        std::byte* const tier = tier_->bytes().data() + at;
        const bool up = IsUp(way, at);
        std::memcpy(
            up ? dram : tier, up ? tier : dram,
            static_cast<size_t>(std::min(kPieceBytes, size_bytes_ - at)));
      }
      if (left.fetch_sub(1) == 1) ended.Set();
    };
    const Stopwatch watch;
    for (int i = 0; i < executor.parallelism(); ++i) {
      executor.Run(loop, Lane::kMotion);
    }
    ended.Await();
    return watch.Stop(size_bytes_);
  }

 private:
  explicit Workbench(int64_t size_bytes) : size_bytes_(size_bytes) {}

  const int64_t size_bytes_;
  std::unique_ptr<HostArena> dram_, tier_;
};

absl::Status AddRows(Workbench& bench, int threads, int64_t rounds, Gate& gate,
                     Section* section) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                           MakePoolExecutor(threads, {}));
  for (const Way way : {Way::kDown, Way::kUp, Way::kBoth}) {
    const std::string name = absl::StrCat(NameOf(way), ", x", threads);
    TERRACE_RETURN_IF_ERROR(AddBeside(
        name, [&] { return bench.RunTransport(*executor, way); }, "memcpy",
        [&] { return bench.RunLoop(*executor, way); }, rounds, gate, section));
  }
  return absl::OkStatus();
}

absl::Status RunCopies(int64_t size, int threads, int64_t rounds, Gate& gate,
                       bool json) {
  TERRACE_ASSIGN_OR_RETURN(const auto bench, Workbench::Make(size));
  std::vector<int> parts = {threads};
  if (threads == 0) {
    parts = {1};
    const int all = static_cast<int>(std::thread::hardware_concurrency());
    if (all > 1) parts.push_back(all);
  }
  Section section;
  section.title = "Copies between DRAM and a tier of memory";
  for (const int part : parts) {
    TERRACE_RETURN_IF_ERROR(AddRows(*bench, part, rounds, gate, &section));
  }
  section.text = absl::StrFormat(
      "%d MiB a run, in pieces of 1 MiB, on one thread and on all; moves of 8 "
      "MiB, of both directions in turn where both are copied. %d runs, %d of "
      "them disturbed.",
      size / kMiB, gate.runs(), gate.disturbed());
  PrintSection(section, json);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTiersBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t size,
                           flags.number("size", 256 * kMiB));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 11));
  TERRACE_ASSIGN_OR_RETURN(const int64_t threads, flags.number("threads", 0));
  TERRACE_ASSIGN_OR_RETURN(const int64_t wait, flags.number("gate", 10));
  StepTiersOptions step;
  TERRACE_ASSIGN_OR_RETURN(step.parameters,
                           flags.number("parameters", 32 << 20));
  step.rounds = static_cast<int>(rounds);
  step.pmem_path = flags.text("path", "/dev/shm");
  if (size < kMiB || size > 64 * kGiB || rounds < 1 || rounds > 1000 ||
      threads > 4096 || step.parameters < 1 << 20) {
    return absl::InvalidArgumentError(absl::StrCat(
        "out of range: --size ", size, " (1M to 64G), --rounds ", rounds,
        " (1 to 1000), --threads ", threads, " (0 to 4096), --parameters ",
        step.parameters, " (at least 1M)"));
  }
  Gate gate(
      {.enabled = wait > 0, .max_wait_seconds = static_cast<double>(wait)});
  const bool json = flags.has("json");
  if (!flags.has("paced")) {
    TERRACE_RETURN_IF_ERROR(
        RunCopies(size, static_cast<int>(threads), rounds, gate, json));
  }
  TERRACE_ASSIGN_OR_RETURN(const Section paced,
                           MeasureStepOverTiers(step, gate));
  PrintSection(paced, json);
  return absl::OkStatus();
}

}  // namespace terrace::bench
