#include "bench/copy_demand.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/io/io_load.h"
#include "bench/mapped_edge.h"
#include "bench/rounds.h"
#include "bench/tier_copies.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/pool_executor.h"
#include "tiers/copy_transport.h"

namespace terrace::bench {
namespace {

constexpr int64_t kBulkBytes = kGiB;
constexpr int64_t kBulkMoves = kBulkBytes / kMoveBytes;
constexpr int64_t kDemandBytes = kMiB;
constexpr int64_t kMostPause = 1'000'000;  // ns, between two demands
// What a task of a step updates at a time: a chunk of 8 MiB of moments.
constexpr int64_t kKernelElements = 1 << 20;

// Tasks of the executor that update without end, each elements of its own.
class Kernels {
 public:
  Kernels(Executor& executor, int tasks) : executor_(executor) {
    left_ = tasks;
    for (int i = 0; i < tasks; ++i) {
      Scratch& own = *scratch_.emplace_back(std::make_unique<Scratch>());
      executor_.Run([this, &own] { Update(own); });
    }
  }
  ~Kernels() {
    ends_ = true;
    ended_.Await();
  }

  int64_t updates() const { return updates_; }

 private:
  struct Scratch {
    std::vector<float> p = std::vector<float>(kKernelElements, 1.0f);
    std::vector<float> g = std::vector<float>(kKernelElements, 0.5f);
    std::vector<float> m = std::vector<float>(kKernelElements);
    std::vector<float> v = std::vector<float>(kKernelElements);
  };

  void Update(Scratch& own) {
    AdamSpan span;
    span.parameter = own.p.data();
    span.gradient = own.g.data();
    span.m = own.m.data();
    span.v = own.v.data();
    span.count = kKernelElements;
    AdamUpdate(scalars_, 1.0f, span);
    ++updates_;
    if (!ends_) {
      executor_.Run([this, &own] { Update(own); });
    } else if (left_.fetch_sub(1) == 1) {
      ended_.Set();
    }
  }

  Executor& executor_;
  const AdamScalars scalars_ = MakeAdamScalars(AdamOptions(), 1);
  std::vector<std::unique_ptr<Scratch>> scratch_;
  std::atomic<int64_t> updates_ = 0;
  std::atomic<bool> ends_ = false;
  std::atomic<int> left_ = 0;
  Signal ended_;
};

// One bulk copy with its demands.
class Contest {
 public:
  Contest(MappedEdge& edge, Executor& executor)
      : edge_(edge),
        bulk_span_(RoundDown(SizeOf(edge) * 3 / 4, kMoveBytes)),
        transport_({{kCopiedTier, &edge.medium()}}, executor, SystemClock(),
                   [this] { woken_.Set(); }) {}

  absl::StatusOr<Sample> Run(std::vector<double>* latencies) {
    const Stopwatch watch;
    BeginBulk();
    next_ = SystemClock().Now();
    while (bulk_left_ > 0 || is_out_) {
      if (!is_out_ && bulk_left_ > 0 && SystemClock().Now() >= next_) {
        BeginDemand();
      }
      const absl::Time at_most = is_out_ ? absl::InfiniteFuture() : next_;
      woken_.AwaitFor(std::clamp(at_most - SystemClock().Now(),
                                 absl::ZeroDuration(), absl::Seconds(1)));
      TERRACE_RETURN_IF_ERROR(Reap(latencies));
    }
    return watch.Stop(kBulkBytes);
  }

 private:
  static int64_t SizeOf(MappedEdge& edge) {
    return static_cast<int64_t>(edge.dram().size());
  }

  // One for each place, and the rest as these end.
  void BeginBulk() {
    const int64_t places = bulk_span_ / kMoveBytes;
    for (int64_t i = 0; i < std::min(places, kBulkMoves); ++i) BeginMove(i);
  }
  void BeginMove(int64_t place) {
    Move move;
    move.tag = static_cast<uint64_t>(place + 1);
    move.edge = {kDramTier, kCopiedTier};
    move.from = move.to = {place * kMoveBytes, kMoveBytes};
    move.data = edge_.dram().data() + move.from.offset;
    move.io_class = IoClass::kWriteBack;
    ++bulk_begun_;
    transport_.Begin(move);
  }
  // Of the bytes that bulk leaves alone, one range after another.
  void BeginDemand() {
    const int64_t ranges = (SizeOf(edge_) - bulk_span_) / kDemandBytes;
    Move move;
    move.edge = {kCopiedTier, kDramTier};
    move.from = move.to = {bulk_span_ + demands_++ % ranges * kDemandBytes,
                           kDemandBytes};
    move.data = edge_.dram().data() + move.to.offset;
    is_out_ = true;
    begun_ = SystemClock().Now();
    transport_.Begin(move);
  }
  absl::Status Reap(std::vector<double>* latencies) {
    std::vector<Moved> moved;
    transport_.Poll(&moved);
    for (const Moved& each : moved) {
      TERRACE_RETURN_IF_ERROR(each.status);
      if (each.tag != 0) {
        --bulk_left_;
        const auto place = static_cast<int64_t>(each.tag) - 1;
        if (bulk_begun_ < kBulkMoves) BeginMove(place);
        continue;
      }
      is_out_ = false;
      const absl::Time now = SystemClock().Now();
      latencies->push_back(absl::ToDoubleSeconds(now - begun_));
      next_ =
          now + absl::Nanoseconds(static_cast<int64_t>(random_() % kMostPause));
    }
    return absl::OkStatus();
  }

  MappedEdge& edge_;
  const int64_t bulk_span_;
  Signal woken_;
  CopyTransport transport_;
  std::minstd_rand random_{7};
  int64_t bulk_begun_ = 0;
  int64_t bulk_left_ = kBulkMoves;
  int64_t demands_ = 0;
  bool is_out_ = false;  // a demand
  absl::Time begun_, next_;
};

struct Latencies {
  std::vector<double> last;  // of a run that may not count
  std::vector<double> kept;
  int64_t last_updates = 0;  // of kernels, meanwhile
  int64_t updates = 0;

  void Keep() {
    kept.insert(kept.end(), last.begin(), last.end());
    updates += last_updates;
  }
  double Percentile(int percent) {
    std::sort(kept.begin(), kept.end());
    return kept[kept.size() * static_cast<size_t>(percent) / 100];
  }
  std::string Note() {
    return absl::StrFormat("p50 %.2f ms, p99 %.2f ms of %d demands; %d updates",
                           Percentile(50) * 1e3, Percentile(99) * 1e3,
                           static_cast<int>(kept.size()), updates);
  }
};

Contender ContenderOf(const std::string& name, MappedEdge& edge, int threads,
                      bool with_kernels, Latencies& latencies) {
  return {
      name,
      [&edge, threads, with_kernels, &latencies]() -> absl::StatusOr<Sample> {
        TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                                 MakePoolExecutor(threads, {}));
        std::optional<Kernels> kernels;
        if (with_kernels) kernels.emplace(*executor, threads);
        latencies.last.clear();
        const absl::StatusOr<Sample> sample =
            Contest(edge, *executor).Run(&latencies.last);
        if (kernels.has_value()) latencies.last_updates = kernels->updates();
        return sample;
      },
      [&latencies] { latencies.Keep(); }};
}

}  // namespace

absl::StatusOr<Section> MeasureCopyDemand(int64_t size_bytes, int threads,
                                          int rounds, Gate& gate) {
  TERRACE_ASSIGN_OR_RETURN(const auto edge, MappedEdge::OfMemory(std::max(
                                                size_bytes, 2 * kMoveBytes)));
  Latencies latencies[2];
  const std::string name = absl::StrCat("write-backs, x", threads);
  TERRACE_ASSIGN_OR_RETURN(
      const Rounds result,
      Rounds::Run({ContenderOf(absl::StrCat(name, ", beside kernels"), *edge,
                               threads, true, latencies[0]),
                   ContenderOf(name, *edge, threads, false, latencies[1])},
                  rounds, gate));
  Section section;
  section.title = "A demand beside copies, and beside kernels";
  section.text = absl::StrFormat(
      "1 GiB of write-backs in moves of 8 MiB, as many begun at a time as "
      "there are places for; a demand of 1 MiB the other way at random "
      "moments, one at a time, from its begin to its end. Kernels: AdamUpdate "
      "of %d elements a task, as many tasks as threads, again and again.",
      kKernelElements);
  for (int i = 0; i < result.size(); ++i) {
    section.rates.push_back({result.name(i), result.Of(i, Figure::kRate),
                             result.Of(i, Figure::kCpu), latencies[i].Note()});
  }
  const double ratio =
      latencies[0].Percentile(99) / latencies[1].Percentile(99);
  RatioRow row;
  row.subject = "p99 of a demand beside kernels";
  row.bound = "without kernels";
  row.figure = "p99";
  row.ratio = {ratio, ratio, ratio};
  section.ratios.push_back(row);
  return section;
}

}  // namespace terrace::bench
