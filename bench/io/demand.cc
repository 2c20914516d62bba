// A small demand behind large transfers: what the classes are for. First come,
// first served makes it wait for everything that was enqueued before.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/io/io_bench.h"
#include "bench/io/light_device.h"
#include "bench/io/queue_side.h"
#include "bench/io/scratch_file.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr double kPeriod = 0.005;  // seconds between two demand reads
// Of a disk, bytes per second: so that its demand reads come while the bulk is
// under way.
constexpr int64_t kFastDisk = 5 * kGiB;
constexpr int64_t kDevice = 64 * kMiB;
constexpr int64_t kInFlight = 8 * kMiB;
constexpr double kMostLate = 0.01;  // of the paced completions

// One way to order the same transfers, and the latencies of the runs that
// count.
struct Discipline {
  std::unique_ptr<QueueSide> side;
  int path = 0;
  Order order;
  std::vector<double> latencies;  // seconds
  int64_t paced = 0;              // completions, before the measurement
  int64_t late = 0;

  double Percentile(int percent) const {
    if (latencies.empty()) return 0;
    std::vector<double> sorted = latencies;
    std::sort(sorted.begin(), sorted.end());
    const size_t at = sorted.size() * static_cast<size_t>(percent) / 100;
    return sorted[std::min(at, sorted.size() - 1)];
  }
  double LateShare() const {
    const EngineInfo info = side->info();
    const auto completions =
        static_cast<double>(info.paced_completions - paced);
    return completions > 0
               ? static_cast<double>(info.late_completions - late) / completions
               : 0;
  }
};

absl::StatusOr<Discipline> Make(const IoBench& bench, int fd,
                                int64_t bytes_per_second,
                                const IoQueueOptions& options, bool fifo,
                                int demands) {
  std::unique_ptr<IoEngine> engine;
  if (bytes_per_second > 0) {
    engine =
        MakePacedEngine(MakeLightDevice(kDevice, SystemClock()),
                        {bytes_per_second, bytes_per_second}, SystemClock());
  } else {
    TERRACE_ASSIGN_OR_RETURN(engine, MakeEngine(bench.engine));
  }
  Discipline made;
  made.side = std::make_unique<QueueSide>(std::move(engine));
  made.side->RegisterArena(bench.bulk);
  TERRACE_ASSIGN_OR_RETURN(made.path, made.side->AddPath(fd, options));
  made.order.ahead = 1 << 20;  // all at once
  made.order.fifo = fifo;
  made.order.demand_period = kPeriod;
  made.order.demands = demands;
  made.order.demand_memory = bench.demand.data();
  made.order.demand_span = bytes_per_second > 0 ? kDevice : bench.size_bytes;
  return made;
}

Contender ContenderOf(const std::string& name, const IoBench& bench,
                      const Load& load, Discipline* discipline) {
  return {name,
          [&bench, load, discipline]() -> absl::StatusOr<Sample> {
            discipline->side->ForgetLatencies();
            const Stopwatch watch;
            TERRACE_ASSIGN_OR_RETURN(
                const int64_t bulk,
                discipline->side->Run(load, bench.bulk, {discipline->path},
                                      discipline->order));
            return watch.Stop(bulk + discipline->order.demands * kDemand);
          },
          [discipline] {
            const auto& last = discipline->side->latencies();
            discipline->latencies.insert(discipline->latencies.end(),
                                         last.begin(), last.end());
          }};
}

// Twelve steps a decade from 0.1 ms, in per cent of all.
Series HistogramOf(const std::string& name,
                   const std::vector<double>& latencies) {
  constexpr int kSteps = 12;
  constexpr int kDecades = 5;
  std::vector<double> counts(kSteps * kDecades, 0);
  for (const double latency : latencies) {
    const double at = std::log10(latency * 1e3 / 0.1) * kSteps;
    const auto step = static_cast<size_t>(
        std::clamp(at, 0.0, static_cast<double>(counts.size() - 1)));
    ++counts[step];
  }
  Series series{name, {}};
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto step = static_cast<double>(i);
    series.points.push_back(
        {0.1 * std::pow(10, step / kSteps),
         counts[i] * 100 / static_cast<double>(latencies.size()), 0, 0});
  }
  return series;
}

std::string LatencyNote(const Discipline& discipline) {
  return absl::StrFormat("p50 %.2f ms, p99 %.2f ms of %d demand reads",
                         discipline.Percentile(50) * 1e3,
                         discipline.Percentile(99) * 1e3,
                         static_cast<int>(discipline.latencies.size()));
}

RatioRow LatencyRow(const std::string& bound, double limit, Bar bar,
                    const Discipline& discipline, int asked) {
  RatioRow row;
  row.subject = "p99 of a demand read";
  row.bound = bound;
  row.figure = "p99";
  const double ratio = discipline.Percentile(99) / limit;
  row.ratio = {ratio, ratio, ratio};
  row.bar = bar;
  row.note = absl::StrFormat("%s; limit %.2f ms", LatencyNote(discipline),
                             limit * bar.limit * 1e3);
  const double late = discipline.LateShare();
  if (late > kMostLate) {
    row.void_reason = absl::StrFormat(
        "%.1f %% of the device's completions were late", late * 100);
  } else if (static_cast<int>(discipline.latencies.size()) < asked) {
    row.void_reason = absl::StrFormat("fewer than %d samples", asked);
  }
  return row;
}

// What was measured, but for the ratios.
Section SectionOf(const Load& load, int64_t bytes_per_second,
                  const Rounds& rounds, const Discipline& classes,
                  const Discipline& fifo) {
  const bool is_paced = bytes_per_second > 0;
  Section section;
  section.title = is_paced
                      ? absl::StrCat("Small behind large, a device of ",
                                     bytes_per_second / kGiB, " GiB/s each way")
                      : "Small behind large, on the disk";
  section.text = absl::StrCat(
      "A 1 MiB demand read every 5 ms beside ", load.read_bytes / kMiB,
      " MiB of reads and ", load.written_bytes / kMiB,
      " MiB of writes, all enqueued at the start. A latency counts from when "
      "the read was due. ",
      is_paced ? "The device is memory and its completions are paced; of each "
                 "block it moves one line, so that copying does not bound it."
               : "");
  const Discipline* const both[] = {&classes, &fifo};
  Chart chart;
  chart.kind = Chart::Kind::kSteps;
  chart.title = absl::StrCat("Latency of demand reads: ", section.title);
  chart.x_label = "latency, ms";
  chart.y_label = "% of the reads";
  for (int i = 0; i < 2; ++i) {
    section.rates.push_back({rounds.name(i), rounds.Of(i, Figure::kRate),
                             rounds.Of(i, Figure::kCpu),
                             LatencyNote(*both[i])});
    chart.series.push_back(HistogramOf(rounds.name(i), both[i]->latencies));
  }
  section.charts.push_back(std::move(chart));
  return section;
}

}  // namespace

absl::StatusOr<Section> MeasureDemand(const IoBench& bench,
                                      int64_t bytes_per_second) {
  const bool is_paced = bytes_per_second > 0;
  std::unique_ptr<ScratchFile> file;
  // Half of it read, half of it written: of a device in memory, whatever its
  // size.
  Load load{kGiB, kGiB};
  load.footprint = 64 * kMiB;
  load.wrap = kDevice;
  if (!is_paced) {
    load = {bench.size_bytes / 2, bench.size_bytes / 2};
    TERRACE_ASSIGN_OR_RETURN(
        file, ScratchFile::Create(bench.directories[0], bench.size_bytes,
                                  FileState::kWritten, bench.bulk));
  }
  const int fd = is_paced ? 0 : file->fd();
  // As many as come while the device moves the bulk.
  const auto demands = std::max(
      1, static_cast<int>(
             static_cast<double>(is_paced ? load.read_bytes : load.total()) /
             static_cast<double>(is_paced ? bytes_per_second : kFastDisk) /
             kPeriod));
  const IoQueueOptions fixed = Fixed(4 * kMiB, kInFlight);
  TERRACE_ASSIGN_OR_RETURN(
      Discipline classes, Make(bench, fd, bytes_per_second,
                               is_paced ? bench.queue : fixed, false, demands));
  TERRACE_ASSIGN_OR_RETURN(
      Discipline fifo, Make(bench, fd, bytes_per_second, fixed, true, demands));
  const std::vector<Contender> contenders = {
      ContenderOf(
          is_paced ? "classes, limit that adapts" : "classes, 4 MiB x 2", bench,
          load, &classes),
      ContenderOf("first come, first served, 4 MiB x 2", bench, load, &fifo)};
  // The limit settles.
  TERRACE_RETURN_IF_ERROR(contenders[0].run().status());
  const int needed = (bench.samples + demands - 1) / demands;
  classes.paced = classes.side->info().paced_completions;
  classes.late = classes.side->info().late_completions;
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds rounds,
      Rounds::Run(contenders, std::max(bench.rounds, needed), *bench.gate));

  Section section = SectionOf(load, bytes_per_second, rounds, classes, fifo);
  const double limit_seconds = static_cast<double>(kInFlight) / kMiB /
                               rounds.Of(0, Figure::kRate).median;
  section.ratios.push_back(
      is_paced ? LatencyRow("3 ms + 1 MiB / bandwidth",
                            3e-3 + static_cast<double>(kDemand) /
                                       static_cast<double>(bytes_per_second),
                            Bar{1.0, false}, classes, bench.samples)
               : LatencyRow("limit / bandwidth", limit_seconds, Bar{1.5, false},
                            classes, bench.samples));
  section.ratios.push_back({rounds.name(0), rounds.name(1), "MiB/s",
                            rounds.Ratio(0, 1, Figure::kRate), Bar{0.95, true},
                            "", ""});
  return section;
}

}  // namespace terrace::bench
