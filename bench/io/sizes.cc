// Bandwidth and processor time over the size of pieces and the bytes in
// flight: what the defaults are chosen from.
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/io/io_bench.h"
#include "bench/io/queue_side.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPieces[] = {256 << 10, 512 << 10, kMiB,
                               2 * kMiB,  4 * kMiB,  8 * kMiB};
constexpr int64_t kSizesInFlight[] = {4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB};

std::string SizeName(int64_t bytes) {
  return bytes >= kMiB ? absl::StrCat(bytes / kMiB, " MiB")
                       : absl::StrCat(bytes / 1024, " KiB");
}

struct Charts {
  Chart rate;
  Chart cpu;
};

Charts EmptyCharts(const char* direction) {
  Charts charts;
  charts.rate.title = absl::StrCat("Bandwidth of ", direction);
  charts.rate.x_label = "piece";
  charts.rate.y_label = "MiB/s";
  charts.cpu.title = absl::StrCat("Processor time of ", direction);
  charts.cpu.x_label = "piece";
  charts.cpu.y_label = "CPU, ms per GiB";
  for (const int64_t piece : kPieces) {
    charts.rate.categories.push_back(SizeName(piece));
    charts.cpu.categories.push_back(SizeName(piece));
  }
  return charts;
}

Point PointOf(size_t category, const Spread& spread) {
  return {static_cast<double>(category), spread.median, spread.minimum,
          spread.maximum};
}

struct Sweep {
  const IoBench& bench;
  std::unique_ptr<ScratchFile> file;
  std::unique_ptr<QueueSide> queue;
  std::unique_ptr<UringRawLoop> raw;                 // null: no io_uring
  std::map<std::pair<int64_t, int64_t>, int> paths;  // of piece and in_flight

  absl::Status Setup() {
    TERRACE_ASSIGN_OR_RETURN(
        file, ScratchFile::Create(bench.directories[0], bench.size_bytes,
                                  FileState::kWritten, bench.bulk));
    TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(bench.engine));
    const bool is_ring = engine->info().name == "io_uring";
    queue = std::make_unique<QueueSide>(std::move(engine));
    queue->RegisterArena(bench.bulk);
    if (!is_ring) return absl::OkStatus();
    TERRACE_ASSIGN_OR_RETURN(raw,
                             UringRawLoop::Create({file->fd()}, bench.bulk));
    return absl::OkStatus();
  }

  absl::StatusOr<int> PathOf(int64_t piece, int64_t in_flight) {
    const auto at = paths.find({piece, in_flight});
    if (at != paths.end()) return at->second;
    TERRACE_ASSIGN_OR_RETURN(
        const int path, queue->AddPath(file->fd(), Fixed(piece, in_flight)));
    paths[{piece, in_flight}] = path;
    return path;
  }

  absl::Status Row(const char* direction, const Load& load, size_t column,
                   int64_t in_flight, Section* section, Series* rates,
                   Series* cpus);
};

absl::Status Sweep::Row(const char* direction, const Load& load, size_t column,
                        int64_t in_flight, Section* section, Series* rates,
                        Series* cpus) {
  const int64_t piece = kPieces[column];
  TERRACE_ASSIGN_OR_RETURN(const int path, PathOf(piece, in_flight));
  const std::string shape = Shape(piece, in_flight);
  std::vector<Contender> contenders;
  contenders.push_back(
      {absl::StrCat(direction, ", queue, ", shape),
       [&, path]() -> absl::StatusOr<Sample> {
         const Stopwatch watch;
         Order order;
         order.ahead = static_cast<int>(2 * in_flight / kTransfer) + 2;
         TERRACE_ASSIGN_OR_RETURN(const int64_t moved,
                                  queue->Run(load, bench.bulk, {path}, order));
         return watch.Stop(moved);
       }});
  if (raw != nullptr) {
    contenders.push_back({absl::StrCat("raw io_uring, ", shape),
                          [&]() -> absl::StatusOr<Sample> {
                            const Stopwatch watch;
                            LoadCursor cursor(load, bench.bulk, piece);
                            TERRACE_RETURN_IF_ERROR(raw->Run(
                                static_cast<int>(in_flight / piece),
                                [&](IoRequest* r) { return cursor.Next(r); }));
                            return watch.Stop(load.total());
                          }});
  }
  TERRACE_ASSIGN_OR_RETURN(const Rounds rounds,
                           Rounds::Run(contenders, bench.rounds, *bench.gate));
  const Spread rate = rounds.Of(0, Figure::kRate);
  const Spread cpu = rounds.Of(0, Figure::kCpu);
  section->rates.push_back({rounds.name(0), rate, cpu, ""});
  if (rounds.size() > 1) {
    section->ratios.push_back({rounds.name(0), rounds.name(1), "MiB/s",
                               rounds.Ratio(0, 1, Figure::kRate), std::nullopt,
                               "", ""});
  }
  rates->points.push_back(PointOf(column, rate));
  cpus->points.push_back(PointOf(column, cpu));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Section> MeasureSizes(const IoBench& bench) {
  Sweep sweep{bench, nullptr, nullptr, nullptr, {}};
  TERRACE_RETURN_IF_ERROR(sweep.Setup());
  Section section;
  section.title = "Piece and bytes in flight";
  section.text = absl::StrCat("One file, written before; ",
                              bench.size_bytes / 2 / kMiB, " MiB a run.");
  const std::pair<const char*, Load> loads[] = {
      {"read", {bench.size_bytes / 2, 0}},
      {"write", {0, bench.size_bytes / 2}}};
  for (const auto& [direction, load] : loads) {
    Charts charts = EmptyCharts(direction);
    for (const int64_t in_flight : kSizesInFlight) {
      Series rates{absl::StrCat(SizeName(in_flight), " in flight"), {}};
      Series cpus = rates;
      for (size_t i = 0; i < std::size(kPieces); ++i) {
        if (kPieces[i] > in_flight || in_flight / kPieces[i] > 64) continue;
        TERRACE_RETURN_IF_ERROR(
            sweep.Row(direction, load, i, in_flight, &section, &rates, &cpus));
      }
      charts.rate.series.push_back(std::move(rates));
      charts.cpu.series.push_back(std::move(cpus));
    }
    section.charts.push_back(std::move(charts.rate));
    section.charts.push_back(std::move(charts.cpu));
  }
  return section;
}

}  // namespace terrace::bench
