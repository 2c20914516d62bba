// Both sides of a row copy the same bytes: the transport with moves of 8 MiB,
// the loop with the least that its medium takes, on the same threads. So what
// the ratio shows is the transport's own cost: cutting, choosing, lanes, wakes.
#include "bench/tiers.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/copy_demand.h"
#include "bench/device_bench.h"
#include "bench/disk_edge.h"
#include "bench/gate.h"
#include "bench/io/io_load.h"
#include "bench/mapped_edge.h"
#include "bench/report/document.h"
#include "bench/step_tiers.h"
#include "bench/tier_copies.h"
#include "kernels/pool_executor.h"
#include "terrace/tier.h"

namespace terrace::bench {
namespace {

struct Setting {
  int64_t size = 0;
  int64_t rounds = 0;
  int threads = 0;
  bool unsafe_media = false;
  bool json = false;
};

int AllThreads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string Disturbances(const Gate& gate) {
  return absl::StrFormat("%d runs, %d of them disturbed.", gate.runs(),
                         gate.disturbed());
}

absl::Status AddRows(MappedEdge& edge, int threads, int64_t rounds, Gate& gate,
                     Section* section) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                           MakePoolExecutor(threads, {}));
  for (const Way way : {Way::kDown, Way::kUp, Way::kBoth}) {
    const std::string name = absl::StrCat(NameOf(way), ", x", threads);
    TERRACE_RETURN_IF_ERROR(AddBeside(
        name, [&] { return edge.RunTransport(*executor, way); },
        edge.loop_name(), [&] { return edge.RunLoop(*executor, way); },
        edge.bar(), rounds, gate, section));
  }
  return absl::OkStatus();
}

absl::Status RunMapped(MappedEdge& edge, const std::string& name,
                       const Setting& setting, Gate& gate) {
  std::vector<int> parts = {setting.threads};
  if (setting.threads == 0) {
    parts = {1};
    if (AllThreads() > 1) parts.push_back(AllThreads());
  }
  Section section;
  section.title = absl::StrCat("Copies between DRAM and ", name);
  for (const int part : parts) {
    TERRACE_RETURN_IF_ERROR(
        AddRows(edge, part, setting.rounds, gate, &section));
  }
  section.text = absl::StrFormat(
      "%d MiB a run, in pieces of 1 MiB, on one thread and on all; moves of 8 "
      "MiB, of both directions in turn where both are copied. %s",
      static_cast<int64_t>(edge.dram().size()) / kMiB, Disturbances(gate));
  PrintSection(section, setting.json);
  return absl::OkStatus();
}

absl::Status RunDisk(const TierSpec& tier, const Setting& setting, Gate& gate) {
  TERRACE_ASSIGN_OR_RETURN(
      const auto edge,
      DiskEdge::Make(tier.place,
                     tier.budget_bytes > 0 ? tier.budget_bytes : setting.size));
  Section section;
  section.title = absl::StrCat("Moves between DRAM and ", TierName(tier));
  for (const Way way : {Way::kDown, Way::kUp, Way::kBoth}) {
    TERRACE_RETURN_IF_ERROR(AddBeside(
        NameOf(way), [&] { return edge->RunTransport(way); }, edge->loop_name(),
        [&] { return edge->RunLoop(way); }, std::nullopt, setting.rounds, gate,
        &section));
  }
  section.text = absl::StrFormat(
      "%d MiB a run of one file; moves of 8 MiB, of both directions in turn "
      "where both are moved, beside 4 MiB a request, two in flight. %s",
      edge->size_bytes() / kMiB, Disturbances(gate));
  PrintSection(section, setting.json);
  return absl::OkStatus();
}

absl::Status RunTier(const TierSpec& tier, const Setting& setting, Gate& gate) {
  if (tier.kind == TierKind::kDisk) return RunDisk(tier, setting, gate);
  TERRACE_ASSIGN_OR_RETURN(
      const auto edge,
      MappedEdge::Of(tier, setting.size, setting.unsafe_media));
  return RunMapped(*edge, TierName(tier), setting, gate);
}

absl::Status RunMemory(const Setting& setting, Gate& gate) {
  TERRACE_ASSIGN_OR_RETURN(const auto edge, MappedEdge::OfMemory(setting.size));
  TERRACE_RETURN_IF_ERROR(RunMapped(*edge, "a tier of memory", setting, gate));
  TERRACE_ASSIGN_OR_RETURN(
      const Section demand,
      MeasureCopyDemand(setting.size,
                        setting.threads == 0 ? AllThreads() : setting.threads,
                        static_cast<int>(setting.rounds), gate));
  PrintSection(demand, setting.json);
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
  const Setting setting{.size = size,
                        .rounds = rounds,
                        .threads = static_cast<int>(threads),
                        .unsafe_media = flags.has("unsafe-media"),
                        .json = flags.has("json")};
  if (flags.has("tier")) {
    TERRACE_ASSIGN_OR_RETURN(const TierSpec tier,
                             ParseTier(flags.text("tier", "")));
    if (tier.kind == TierKind::kHbm) {
      return MeasureDeviceCopies(tier.place, tier.budget_bytes, flags);
    }
    return RunTier(tier, setting, gate);
  }
  if (!flags.has("paced")) {
    TERRACE_RETURN_IF_ERROR(RunMemory(setting, gate));
  }
  TERRACE_ASSIGN_OR_RETURN(const Section paced,
                           MeasureStepOverTiers(step, gate));
  PrintSection(paced, setting.json);
  return absl::OkStatus();
}

}  // namespace terrace::bench
