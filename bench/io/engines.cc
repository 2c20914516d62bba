// Each direction in one contest, so that any two of its contenders can be
// compared within a round.
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/io/fio.h"
#include "bench/io/io_bench.h"
#include "bench/io/libaio_loop.h"
#include "bench/io/queue_side.h"
#include "bench/io/raw_threads.h"
#include "bench/io/ring_workers.h"
#include "bench/io/scratch_file.h"
#include "bench/io/uring_raw_loop.h"
#include "bench/rounds.h"

namespace terrace::bench {
namespace {

constexpr int64_t kSmallFootprint = 8 * kMiB;
constexpr int64_t kEnginesInFlight = 8 * kMiB;
// What 4 MiB pieces need for few sleeps a byte; the 8 MiB of the default are
// for short waits.
constexpr int64_t kManyInFlight = 16 * kMiB;
// As long as fio runs, which goes through the file again and again: a pass of
// 1 GiB takes a fast disk a tenth of it, and begins and ends with an idle disk.
constexpr double kPeerSeconds = 1;
constexpr int64_t kEndless = 1024 * kGiB;

// The contenders of one file, and what each could be made of here.
class Contest {
 public:
  static absl::StatusOr<std::unique_ptr<Contest>> Create(const IoBench& bench);

  absl::StatusOr<Section> Measure(const char* title, const Load& load);

 private:
  explicit Contest(const IoBench& bench) : bench_(bench) {}
  absl::Status OpenRing();
  absl::Status OpenThreads();

  // Moves the load once, or as much as there is time for.
  void AddQueue(const char* key, const std::string& name, QueueSide* side,
                int path, const Load& load, double seconds = 0);
  void AddRaw(const char* key, const std::string& suffix, int64_t piece_bytes,
              const Load& load, double seconds = 0);
  void AddLibaio(const Load& load);
  void AddPeer(const Load& load);
  void Compare(Section* section, const Rounds& rounds, const char* subject,
               const char* bound, Figure figure, std::optional<Bar> bar) const;
  void CompareAll(Section* section, const Rounds& rounds,
                  const Load& load) const;

  const IoBench& bench_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<QueueSide> ring_;  // null: no io_uring here
  int ring_4m_ = 0;
  int ring_wide_ = 0;
  int ring_1m_ = 0;
  int ring_adaptive_ = 0;
  std::unique_ptr<QueueSide> threads_;
  int threads_4m_ = 0;
  std::unique_ptr<UringRawLoop> raw_;
  std::unique_ptr<LibaioLoop> libaio_;
  std::string no_libaio_;
  std::unique_ptr<Fio> fio_;
  std::string no_fio_;

  std::vector<Contender> contenders_;
  std::map<std::string, int> index_;  // of a key
};

absl::Status Contest::OpenRing() {
  TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(bench_.engine));
  if (engine->info().name != "io_uring") return absl::OkStatus();
  ring_ = std::make_unique<QueueSide>(std::move(engine));
  ring_->RegisterArena(bench_.bulk);
  const int fd = file_->fd();
  TERRACE_ASSIGN_OR_RETURN(
      ring_4m_, ring_->AddPath(fd, Fixed(4 * kMiB, kEnginesInFlight)));
  TERRACE_ASSIGN_OR_RETURN(ring_wide_,
                           ring_->AddPath(fd, Fixed(4 * kMiB, kManyInFlight)));
  TERRACE_ASSIGN_OR_RETURN(ring_1m_,
                           ring_->AddPath(fd, Fixed(kMiB, kEnginesInFlight)));
  TERRACE_ASSIGN_OR_RETURN(ring_adaptive_, ring_->AddPath(fd, bench_.queue));
  TERRACE_ASSIGN_OR_RETURN(raw_, UringRawLoop::Create({fd}, bench_.bulk));
  return absl::OkStatus();
}

absl::Status Contest::OpenThreads() {
  TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(EngineKind::kThreads));
  threads_ = std::make_unique<QueueSide>(std::move(engine));
  TERRACE_ASSIGN_OR_RETURN(
      threads_4m_,
      threads_->AddPath(file_->fd(), Fixed(4 * kMiB, kEnginesInFlight)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Contest>> Contest::Create(const IoBench& bench) {
  auto contest = std::unique_ptr<Contest>(new Contest(bench));
  TERRACE_ASSIGN_OR_RETURN(
      contest->file_,
      ScratchFile::Create(bench.directories[0], bench.size_bytes,
                          FileState::kWritten, bench.bulk));
  TERRACE_RETURN_IF_ERROR(contest->OpenRing());
  TERRACE_RETURN_IF_ERROR(contest->OpenThreads());
  auto libaio = LibaioLoop::Create({contest->file_->fd()});
  if (libaio.ok()) {
    contest->libaio_ = *std::move(libaio);
  } else {
    contest->no_libaio_ = std::string(libaio.status().message());
  }
  if (bench.has_fio) {
    auto fio = Fio::Create(contest->file_->fd(), bench.size_bytes);
    if (fio.ok()) {
      contest->fio_ = *std::move(fio);
    } else {
      contest->no_fio_ = std::string(fio.status().message());
    }
  }
  return contest;
}

void Contest::AddQueue(const char* key, const std::string& name,
                       QueueSide* side, int path, const Load& load,
                       double seconds) {
  if (side == nullptr) return;
  index_[key] = static_cast<int>(contenders_.size());
  contenders_.push_back({name, [=, this]() -> absl::StatusOr<Sample> {
                           Order order;
                           order.most_seconds = seconds;
                           const Stopwatch watch;
                           TERRACE_ASSIGN_OR_RETURN(
                               const int64_t moved,
                               side->Run(load, bench_.bulk, {path}, order));
                           return watch.Stop(moved);
                         }});
}

void Contest::AddRaw(const char* key, const std::string& suffix,
                     int64_t piece_bytes, const Load& load, double seconds) {
  const int depth = static_cast<int>(kEnginesInFlight / piece_bytes);
  index_[key] = static_cast<int>(contenders_.size());
  const auto run = [=, this]() -> absl::StatusOr<Sample> {
    const Stopwatch watch;
    LoadCursor cursor(load, bench_.bulk, piece_bytes);
    const double end = Seconds() + seconds;
    int64_t moved = 0;
    const auto next = [&](IoRequest* request) {
      if (seconds > 0 && Seconds() >= end) return false;
      if (!cursor.Next(request)) return false;
      moved += request->size_bytes;
      return true;
    };
    if (raw_ == nullptr) {
      TERRACE_RETURN_IF_ERROR(
          RunRawThreads({file_->fd()}, load, bench_.bulk, piece_bytes, depth));
      return watch.Stop(load.total());
    }
    TERRACE_RETURN_IF_ERROR(raw_->Run(depth, next));
    return watch.Stop(moved);
  };
  contenders_.push_back(
      {absl::StrCat("raw ", raw_ != nullptr ? "io_uring" : "pread/pwrite", ", ",
                    Shape(piece_bytes, kEnginesInFlight), suffix),
       run});
}

void Contest::AddLibaio(const Load& load) {
  if (libaio_ == nullptr) return;
  index_["libaio"] = static_cast<int>(contenders_.size());
  contenders_.push_back(
      {absl::StrCat("raw libaio, ", Shape(kMiB, kEnginesInFlight)),
       [=, this]() -> absl::StatusOr<Sample> {
         const Stopwatch watch;
         LoadCursor cursor(load, bench_.bulk, kMiB);
         TERRACE_RETURN_IF_ERROR(
             libaio_->Run(static_cast<int>(kEnginesInFlight / kMiB),
                          [&](IoRequest* r) { return cursor.Next(r); }));
         return watch.Stop(load.total());
       }});
}

// Beside fio, as long as it runs.
void Contest::AddPeer(const Load& load) {
  const bool reads = load.read_bytes > 0;
  if (fio_ == nullptr || (reads && load.written_bytes > 0)) return;
  index_["fio"] = static_cast<int>(contenders_.size());
  contenders_.push_back({absl::StrCat(fio_->version(), " io_uring, ",
                                      Shape(kMiB, kEnginesInFlight)),
                         [this, reads] {
                           return fio_->Run(reads ? IoDirection::kRead
                                                  : IoDirection::kWrite);
                         }});
  Load large = load;
  (reads ? large.read_bytes : large.written_bytes) = kEndless;
  large.wrap = bench_.size_bytes;
  Load small = large;
  small.footprint = kSmallFootprint;
  AddQueue("small", "queue, 4 MiB x 2, 8 MiB of memory, 1 s", ring_.get(),
           ring_4m_, small, kPeerSeconds);
  AddQueue("small 1m", "queue, 1 MiB x 8, 8 MiB of memory, 1 s", ring_.get(),
           ring_1m_, small, kPeerSeconds);
  AddQueue("large", "queue, 4 MiB x 2, 256 MiB of memory, 1 s", ring_.get(),
           ring_4m_, large, kPeerSeconds);
  if (raw_ == nullptr) return;
  AddRaw("raw small", ", 8 MiB of memory, 1 s", kMiB, small, kPeerSeconds);
  AddRaw("raw large", ", 256 MiB of memory, 1 s", 4 * kMiB, large,
         kPeerSeconds);
}

void Contest::Compare(Section* section, const Rounds& rounds,
                      const char* subject, const char* bound, Figure figure,
                      std::optional<Bar> bar) const {
  const auto subject_at = index_.find(subject);
  const auto bound_at = index_.find(bound);
  if (subject_at == index_.end() || bound_at == index_.end()) return;
  RatioRow row;
  row.subject = rounds.name(subject_at->second);
  row.bound = rounds.name(bound_at->second);
  row.figure = figure == Figure::kRate ? "MiB/s" : "CPU";
  row.ratio = rounds.Ratio(subject_at->second, bound_at->second, figure);
  row.bar = bar;
  section->ratios.push_back(row);
}

void Contest::CompareAll(Section* section, const Rounds& rounds,
                         const Load& load) const {
  const bool is_mixed = load.read_bytes > 0 && load.written_bytes > 0;
  const bool reads = load.read_bytes > 0;
  const auto bar = [&](double limit, bool at_least) -> std::optional<Bar> {
    if (is_mixed) return std::nullopt;
    return Bar{limit, at_least};
  };
  constexpr Figure kRate = Figure::kRate;
  const Bar raw_bar{0.98, true};
  Compare(section, rounds, "4m", "raw 4m", kRate, raw_bar);
  Compare(section, rounds, "1m", "raw 1m", kRate, raw_bar);
  Compare(section, rounds, "adaptive", "raw 4m", kRate, std::nullopt);
  Compare(section, rounds, "threads", "4m", kRate, Bar{0.90, true});
  if (raw_ == nullptr) {
    Compare(section, rounds, "threads", "raw 4m", kRate, std::nullopt);
  }
  Compare(section, rounds, "1m", "libaio", Figure::kCpu, bar(0.85, false));
  Compare(section, rounds, "wide", "libaio", Figure::kCpu,
          bar(reads ? 0.60 : 0.40, false));
  Compare(section, rounds, "4m", "libaio", Figure::kCpu, std::nullopt);
  Compare(section, rounds, "small", "fio", kRate, bar(0.97, true));
  Compare(section, rounds, "small 1m", "fio", kRate, bar(0.97, true));
  Compare(section, rounds, "large", "fio", kRate,
          bar(reads ? 0.90 : 0.87, true));
  // Of the two above, what the disk and the memory leave of it.
  Compare(section, rounds, "raw small", "fio", kRate, std::nullopt);
  Compare(section, rounds, "raw large", "fio", kRate, std::nullopt);
  Compare(section, rounds, "large", "raw large", kRate, std::nullopt);
}

absl::StatusOr<Section> Contest::Measure(const char* title, const Load& load) {
  contenders_.clear();
  index_.clear();
  AddQueue("4m", absl::StrCat("queue, ", Shape(4 * kMiB, kEnginesInFlight)),
           ring_.get(), ring_4m_, load);
  AddRaw("raw 4m", "", 4 * kMiB, load);
  AddQueue("wide", absl::StrCat("queue, ", Shape(4 * kMiB, kManyInFlight)),
           ring_.get(), ring_wide_, load);
  AddQueue("1m", absl::StrCat("queue, ", Shape(kMiB, kEnginesInFlight)),
           ring_.get(), ring_1m_, load);
  AddRaw("raw 1m", "", kMiB, load);
  AddQueue("adaptive", "queue, limit that adapts", ring_.get(), ring_adaptive_,
           load);
  AddQueue(
      "threads",
      absl::StrCat("queue over threads, ", Shape(4 * kMiB, kEnginesInFlight)),
      threads_.get(), threads_4m_, load);
  AddLibaio(load);
  AddPeer(load);
  const int workers_before = CountRingWorkers();
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds rounds,
      Rounds::Run(contenders_, bench_.rounds, *bench_.gate));
  Section section;
  section.title = title;
  section.text =
      absl::StrCat(load.total() / kMiB, " MiB a run of a file of ",
                   bench_.size_bytes / kMiB, " MiB, written before, ",
                   file_->is_direct() ? "O_DIRECT" : "through the page cache",
                   ", ", load.footprint / kMiB, " MiB of memory in use. ");
  if (ring_ != nullptr) {
    const EngineInfo info = ring_->info();
    absl::StrAppend(&section.text, info.name, ": ", info.reason, ", ",
                    info.buffers_registered ? "buffers registered. " : ". ");
    // 0: nothing was handed to a worker thread of the ring.
    absl::StrAppend(&section.text, "Punts seen as worker threads: ",
                    CountRingWorkers() - workers_before, ". ");
  }
  if (!no_libaio_.empty()) absl::StrAppend(&section.text, no_libaio_, ". ");
  if (!no_fio_.empty()) absl::StrAppend(&section.text, no_fio_, ". ");
  for (int i = 0; i < rounds.size(); ++i) {
    section.rates.push_back({rounds.name(i), rounds.Of(i, Figure::kRate),
                             rounds.Of(i, Figure::kCpu), ""});
  }
  CompareAll(&section, rounds, load);
  return section;
}

// Processor time of every contender of every section, in one chart.
Chart CpuChart(const std::vector<Section>& sections) {
  Chart chart;
  chart.kind = Chart::Kind::kBars;
  chart.title = "Processor time of each way to move the same bytes";
  chart.x_label = "CPU, ms per GiB (user and system)";
  for (const Section& section : sections) {
    Series series{section.title, {}};
    for (const RateRow& row : section.rates) {
      size_t at = 0;
      while (at < chart.categories.size() && chart.categories[at] != row.name) {
        ++at;
      }
      if (at == chart.categories.size()) chart.categories.push_back(row.name);
      series.points.push_back({static_cast<double>(at), row.cpu.median,
                               row.cpu.minimum, row.cpu.maximum});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

IoQueueOptions Fixed(int64_t piece_bytes, int64_t in_flight_bytes) {
  IoQueueOptions options;
  options.piece_bytes = piece_bytes;
  options.in_flight_bytes = in_flight_bytes;
  options.adapts = false;
  return options;
}

std::string Shape(int64_t piece_bytes, int64_t in_flight_bytes) {
  const int64_t depth = in_flight_bytes / piece_bytes;
  return piece_bytes >= kMiB
             ? absl::StrCat(piece_bytes / kMiB, " MiB x ", depth)
             : absl::StrCat(piece_bytes / 1024, " KiB x ", depth);
}

absl::StatusOr<std::vector<Section>> MeasureEngines(const IoBench& bench) {
  TERRACE_ASSIGN_OR_RETURN(const auto contest, Contest::Create(bench));
  const int64_t size = bench.size_bytes;
  const std::pair<const char*, Load> loads[] = {
      {"Read", {size, 0}},
      {"Write", {0, size}},
      {"Mixed: reads and writes", {size / 2, size / 2}}};
  std::vector<Section> sections;
  for (const auto& [title, load] : loads) {
    TERRACE_ASSIGN_OR_RETURN(Section section, contest->Measure(title, load));
    sections.push_back(std::move(section));
  }
  sections.back().charts.push_back(CpuChart(sections));
  return sections;
}

}  // namespace terrace::bench
