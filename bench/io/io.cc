#include "bench/io/io.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "bench/described_machine.h"
#include "bench/io/io_bench.h"
#include "bench/io/queue_side.h"
#include "bench/report/document.h"
#include "tiers/memory/host_arena.h"

namespace terrace::bench {
namespace {

constexpr int64_t kBulkMemory = 256 * kMiB;

absl::StatusOr<EngineKind> ParseEngine(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "uring") return EngineKind::kUring;
  if (name == "threads") return EngineKind::kThreads;
  return absl::InvalidArgumentError(
      absl::StrCat("--engine is auto, uring or threads, not '", name, "'"));
}

// A part of the benchmark, by the name that --sections knows.
struct Part {
  const char* key;
  std::function<absl::StatusOr<std::vector<Section>>(const IoBench&)> measure;
};

std::vector<Part> Parts() {
  const auto one = [](auto measure) {
    return [=](const IoBench& bench) -> absl::StatusOr<std::vector<Section>> {
      TERRACE_ASSIGN_OR_RETURN(Section section, measure(bench));
      return std::vector<Section>{std::move(section)};
    };
  };
  const auto demand = [&one](int64_t rate) {
    return one(
        [=](const IoBench& bench) { return MeasureDemand(bench, rate); });
  };
  return {{"engines", MeasureEngines},   {"demand", demand(kGiB)},
          {"demand", demand(4 * kGiB)},  {"demand", demand(0)},
          {"sizes", one(MeasureSizes)},  {"paths", one(MeasurePaths)},
          {"states", one(MeasureStates)}};
}

struct Settings {
  IoBench bench;
  GateOptions gate;
  bool json = false;
  std::vector<std::string> sections;  // empty: all
  std::string report;                 // empty: none
  std::string markdown;
};

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return absl::StrFormat("%04d-%02d-%02d", local.tm_year + 1900,
                         local.tm_mon + 1, local.tm_mday);
}

absl::StatusOr<Settings> Parse(const Flags& flags) {
  Settings settings;
  IoBench& bench = settings.bench;
  settings.json = flags.has("json");
  bench.directories = absl::StrSplit(flags.text("path", "."), ',');
  TERRACE_ASSIGN_OR_RETURN(bench.size_bytes, flags.number("size", kGiB));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(const int64_t samples,
                           flags.number("samples", 1000));
  TERRACE_ASSIGN_OR_RETURN(const int64_t gate, flags.number("gate", 10));
  TERRACE_ASSIGN_OR_RETURN(bench.engine,
                           ParseEngine(flags.text("engine", "auto")));
  if (rounds < 1 || rounds > 1000 || samples < 1 || samples > 1'000'000) {
    return absl::InvalidArgumentError(
        "--rounds is 1 to 1000, --samples 1 to 1000000");
  }
  if (bench.size_bytes < 256 * kMiB || bench.size_bytes % (64 * kMiB) != 0) {
    return absl::InvalidArgumentError(
        "--size is a multiple of 64M, and not below 256M");
  }
  const std::string peer = flags.text("peer", "");
  if (!peer.empty() && peer != "fio") {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer is fio, not '", peer, "'"));
  }
  bench.has_fio = peer == "fio";
  bench.rounds = static_cast<int>(rounds);
  bench.samples = static_cast<int>(samples);
  settings.gate.enabled = gate > 0;
  settings.gate.max_wait_seconds = static_cast<double>(gate);
  if (flags.has("sections")) {
    settings.sections = absl::StrSplit(flags.text("sections", ""), ',');
  }
  for (const std::string& key : settings.sections) {
    const std::vector<Part> parts = Parts();
    if (std::none_of(parts.begin(), parts.end(),
                     [&](const Part& part) { return part.key == key; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sections has no '", key, "'"));
    }
  }
  settings.report = flags.text("report", "");
  settings.markdown = flags.text("markdown", "");
  if (flags.has("results")) {
    settings.markdown =
        absl::StrCat(flags.text("results", "."), "/", Today(), "-io.md");
  }
  return settings;
}

absl::Status WriteFile(const std::string& name, const std::string& text) {
  std::ofstream file(name, std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", name));
  }
  return absl::OkStatus();
}

std::string CommandOf(const Settings& settings) {
  std::string command =
      absl::StrCat("terrace-bench io --size ", settings.bench.size_bytes / kMiB,
                   "M --rounds ", settings.bench.rounds, " --samples ",
                   settings.bench.samples);
  if (!settings.sections.empty()) {
    absl::StrAppend(&command, " --sections ",
                    absl::StrJoin(settings.sections, ","));
  }
  if (settings.bench.has_fio) absl::StrAppend(&command, " --peer fio");
  if (!settings.gate.enabled) absl::StrAppend(&command, " --gate 0");
  return command;
}

std::string ConductOf(const Gate& gate) {
  if (!gate.enabled()) {
    return "No gate: whatever else the machine did is in these figures.";
  }
  return absl::StrCat(gate.runs(), " runs, ", gate.rejected(),
                      " done again because others used the machine; ",
                      gate.disturbed(),
                      " count although it was not quiet around them.");
}

}  // namespace

absl::Status RunIoBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(Settings settings, Parse(flags));
  IoBench& bench = settings.bench;
  HostArenaOptions memory;
  memory.size_bytes = kBulkMemory + 2 * kMiB;
  TERRACE_ASSIGN_OR_RETURN(const auto arena, HostArena::Create(memory));
  std::mt19937_64 random(1);
  for (size_t at = 0; at < arena->bytes().size(); at += 8) {
    *reinterpret_cast<uint64_t*>(arena->bytes().data() + at) = random();
  }
  bench.bulk = arena->bytes().first(kBulkMemory);
  bench.demand = arena->bytes().subspan(kBulkMemory, kDemand);
  Gate gate(settings.gate);
  bench.gate = &gate;

  Document document;
  document.title = "Disk I/O";
  document.date = Today();
  document.command = CommandOf(settings);
  document.machine = DescribeMachine(bench.directories);
  document.machine.emplace_back(
      "memory of the transfers",
      absl::StrFormat("%d MiB, %.0f %% in huge pages", kBulkMemory / kMiB,
                      arena->huge_page_share() * 100));
  for (const auto& [key, part] : Parts()) {
    const auto& asked = settings.sections;
    if (!asked.empty() &&
        std::find(asked.begin(), asked.end(), key) == asked.end()) {
      continue;
    }
    TERRACE_ASSIGN_OR_RETURN(std::vector<Section> sections, part(bench));
    for (Section& section : sections) {
      PrintSection(section, settings.json);
      document.sections.push_back(std::move(section));
    }
  }
  document.conduct = ConductOf(gate);
  if (!settings.json) std::printf("\n%s\n", document.conduct.c_str());
  if (!settings.report.empty()) {
    TERRACE_RETURN_IF_ERROR(WriteFile(settings.report, ToHtml(document)));
  }
  if (!settings.markdown.empty()) {
    TERRACE_RETURN_IF_ERROR(WriteFile(settings.markdown, ToMarkdown(document)));
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
