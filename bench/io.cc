#include "bench/io.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aio/io_group.h"
#include "aio/uring_raw_loop.h"
#include "bench/io_workbench.h"
#include "runtime/base/clock.h"
#include "runtime/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr double kDemandPeriod = 0.005;  // seconds between two
constexpr uint64_t kDemandTag = uint64_t{1} << 32;

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Bytes and processor time of one variant, over all of its runs.
struct Meter {
  double cpu_seconds = 0;
  double bytes = 0;
  double ms_per_gib() const {
    return bytes == 0 ? 0 : cpu_seconds * 1e3 / (bytes / (1 << 30));
  }
};

// Ours: transfers of a chunk through the queue, a few at a time.
class OurSide {
 public:
  absl::Status Setup(const Workbench& bench, EngineKind kind,
                     const IoQueueOptions& options) {
    bench_ = &bench;
    TERRACE_ASSIGN_OR_RETURN(auto engine, MakeEngine(kind));
    group_ = std::make_unique<IoGroup>(std::move(engine), SystemClock());
    TERRACE_ASSIGN_OR_RETURN(path_,
                             group_->AddPath("file", bench.fd(), options));
    group_->RegisterArena(bench.arena());
    return absl::OkStatus();
  }
  EngineInfo info() const { return group_->engine_info(); }
  const std::vector<double>& latencies() const { return latencies_; }
  void ForgetLatencies() { latencies_.clear(); }

  absl::Status Run(const Load& load) {
    LoadCursor cursor(load, *bench_, kTransfer);
    constexpr int kAhead = 4;
    int bulk = 0;
    bool has_more = true;
    uint64_t tag = 0;
    demand_sent_ = 0;
    next_demand_ = Seconds();
    while (has_more || group_->pending() > 0) {
      IoRequest request;
      while (has_more && bulk < kAhead) {
        has_more = cursor.Next(&request);
        if (!has_more) break;
        const bool is_read = request.direction == IoDirection::kRead;
        group_->Enqueue(
            path_, {request.direction,
                    is_read ? IoClass::kPrefetch : IoClass::kWriteBack,
                    request.data, request.offset, request.size_bytes, ++tag});
        ++bulk;
      }
      if (load.demand && has_more) SendDemand();
      TERRACE_ASSIGN_OR_RETURN(const int ended, Reap());
      bulk -= ended;
      if (ended == 0 && group_->pending() > 0) {
        const double left = next_demand_ - Seconds();
        group_->Wait(load.demand && demand_sent_ == 0
                         ? SystemClock().Now() + absl::Seconds(left)
                         : absl::InfiniteFuture());
      }
    }
    return absl::OkStatus();
  }

 private:
  void SendDemand() {
    if (demand_sent_ > 0 || Seconds() < next_demand_) return;
    const auto blocks = static_cast<uint64_t>(bench_->size_bytes() / kDemand);
    group_->Enqueue(
        path_, {IoDirection::kRead, IoClass::kDemand, bench_->demand(),
                static_cast<int64_t>(random_() % blocks) * kDemand, kDemand,
                kDemandTag});
    demand_sent_ = Seconds();
    next_demand_ = demand_sent_ + kDemandPeriod;
  }

  // How many bulk transfers ended.
  absl::StatusOr<int> Reap() {
    std::vector<Completion> ended;
    group_->Poll(&ended);
    int bulk = 0;
    for (const Completion& completion : ended) {
      if (!completion.status.ok()) return completion.status;
      if (completion.tag == kDemandTag) {
        latencies_.push_back(Seconds() - demand_sent_);
        demand_sent_ = 0;
      } else {
        ++bulk;
      }
    }
    return bulk;
  }

  const Workbench* bench_ = nullptr;
  std::unique_ptr<IoGroup> group_;
  int path_ = 0;
  std::mt19937_64 random_{7};
  double demand_sent_ = 0;  // 0: none under way
  double next_demand_ = 0;
  std::vector<double> latencies_;  // of demand reads, seconds
};

using Runner = std::function<absl::Status(const Load&)>;

Variant Measured(const std::string& name, const Load& load, Meter* meter,
                 const Runner& run) {
  return {name, [=]() -> absl::StatusOr<double> {
            const double start = Seconds();
            const double cpu = CpuSeconds();
            TERRACE_RETURN_IF_ERROR(run(load));
            meter->cpu_seconds += CpuSeconds() - cpu;
            meter->bytes += static_cast<double>(load.total());
            return static_cast<double>(load.total()) / kMiB /
                   (Seconds() - start);
          }};
}

absl::StatusOr<EngineKind> ParseEngine(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "uring") return EngineKind::kUring;
  if (name == "threads") return EngineKind::kThreads;
  return absl::InvalidArgumentError(
      absl::StrCat("--engine is auto, uring or threads, not '", name, "'"));
}

struct Settings {
  int rounds = 0;
  bool json = false;
  IoQueueOptions queue;
};

absl::Status RunRows(const Workbench& bench, const Settings& settings,
                     OurSide& ours, const std::string& bound_name,
                     const Runner& raw) {
  const int64_t size = bench.size_bytes();
  const std::pair<const char*, Load> rows[] = {
      {"read", {size, 0, false}},
      {"write", {0, size, false}},
      {"mixed", {size / 2, size / 2, false}},
      {"demand beside", {size / 2, size / 2, true}},
  };
  const Runner our_run = [&](const Load& load) { return ours.Run(load); };
  PrintHeader(settings.json);
  for (const auto& [key, load] : rows) {
    Meter our_meter;
    Meter raw_meter;
    ours.ForgetLatencies();
    const Row row = {key, "MiB/s", Measured("queue", load, &our_meter, our_run),
                     Measured(bound_name, load, &raw_meter, raw)};
    TERRACE_ASSIGN_OR_RETURN(const RowResult result,
                             RunRow(row, settings.rounds));
    std::string extra =
        absl::StrFormat("\"cpu_ms_per_gib\":%.2f,\"bound_cpu_ms_per_gib\":%.2f",
                        our_meter.ms_per_gib(), raw_meter.ms_per_gib());
    std::vector<double> latencies = ours.latencies();
    if (load.demand && !latencies.empty()) {
      std::sort(latencies.begin(), latencies.end());
      const double p50 = latencies[latencies.size() / 2] * 1e3;
      const double p99 = latencies[latencies.size() * 99 / 100] * 1e3;
      const double window_ms =
          static_cast<double>(settings.queue.window_bytes) / kMiB /
          result.subject.median * 1e3;
      absl::StrAppendFormat(
          &extra,
          ",\"demand_reads\":%d,\"demand_p50_ms\":%.2f,\"demand_p99_ms\":%.2f,"
          "\"window_ms\":%.2f,\"demand_p99_over_window\":%.2f",
          static_cast<int>(latencies.size()), p50, p99, window_ms,
          p99 / window_ms);
    }
    PrintRow(row, result, settings.json, extra);
    if (!settings.json) std::printf("%16s %s\n", "", extra.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunIoBenchmark(const Flags& flags) {
  Settings settings;
  settings.json = flags.has("json");
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(const int64_t size,
                           flags.number("size", 256 * kMiB));
  TERRACE_ASSIGN_OR_RETURN(settings.queue.piece_bytes,
                           flags.number("piece", 4 * kMiB));
  TERRACE_ASSIGN_OR_RETURN(settings.queue.window_bytes,
                           flags.number("window", 8 * kMiB));
  TERRACE_ASSIGN_OR_RETURN(const EngineKind kind,
                           ParseEngine(flags.text("engine", "auto")));
  const int64_t piece = settings.queue.piece_bytes;
  if (rounds < 1 || rounds > 1000) {
    return absl::InvalidArgumentError("--rounds is 1 to 1000");
  }
  if (piece < 4096 || kTransfer % piece != 0 ||
      settings.queue.window_bytes < piece) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--piece divides ", kTransfer, ", --window is not below it"));
  }
  settings.rounds = static_cast<int>(rounds);

  Workbench bench;
  TERRACE_RETURN_IF_ERROR(bench.Setup(flags.text("path", "."), size));
  OurSide ours;
  TERRACE_RETURN_IF_ERROR(ours.Setup(bench, kind, settings.queue));
  const EngineInfo info = ours.info();
  std::fprintf(settings.json ? stderr : stdout,
               "engine %s (%s), buffers %s, file %s\n", info.name.c_str(),
               info.reason.c_str(),
               info.buffers_registered ? "registered" : "not registered",
               bench.is_direct() ? "direct" : "buffered");
  const int depth = static_cast<int>(
      std::min<int64_t>(settings.queue.window_bytes / piece, 64));
  if (info.name != "io_uring") {
    return RunRows(bench, settings, ours, "raw pread/pwrite",
                   [&](const Load& load) {
                     return RunRawThreads(bench, load, piece, depth);
                   });
  }
  TERRACE_ASSIGN_OR_RETURN(const auto loop,
                           UringRawLoop::Create(bench.fd(), bench.arena()));
  return RunRows(bench, settings, ours, "raw io_uring", [&](const Load& load) {
    LoadCursor cursor(load, bench, piece);
    return loop->Run(depth,
                     [&](IoRequest* request) { return cursor.Next(request); });
  });
}

}  // namespace terrace::bench
