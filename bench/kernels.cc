// The bound is the best of three loops that move the update's streams without
// its arithmetic (kernels/stream.h), run between the updates, on the same
// arrays, with the same tasks on the same threads. Every rate counts what is
// read plus what is written, none what a store reads of a line.
#include "bench/kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/checksum.h"
#include "kernels/convert.h"
#include "kernels/instruction_set.h"
#include "kernels/norm.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/pool_executor.h"
#include "kernels/stream.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr int64_t kTaskElements = 1 << 19;  // 2 MiB of each fp32 stream

// Runs body(from, count) over [0, total) in tasks and returns the seconds.
double TimeTasks(Executor& executor, int64_t total,
                 const std::function<void(int64_t, int64_t)>& body) {
  Mutex mutex;
  CondVar changed;
  int64_t left = (total + kTaskElements - 1) / kTaskElements;
  const double start = Seconds();
  for (int64_t from = 0; from < total; from += kTaskElements) {
    executor.Run([&, from] {
      body(from, std::min(kTaskElements, total - from));
      MutexLock lock(mutex);
      if (--left == 0) changed.SignalAll();
    });
  }
  MutexLock lock(mutex);
  while (left > 0) changed.Wait(mutex);
  return Seconds() - start;
}

// The arrays of one optimizer: its streams, one after the other, in huge pages
// where the system gives them, as the runtime's arena is.
class Arrays {
 public:
  explicit Arrays(int64_t count)
      : count_((count + 15) / 16 * 16),  // each stream aligned to 64 bytes
        floats_(new (kAlignment) float[4 * static_cast<size_t>(count_)]) {
    madvise(floats_, 16 * static_cast<size_t>(count_), MADV_HUGEPAGE);
    for (int64_t i = 0; i < count_; ++i) {
      p()[i] = static_cast<float>(i % 7 - 3) * 0.25f;
      g()[i] = static_cast<float>(i % 11 - 5) * 0.125f;
      m()[i] = 0;
      v()[i] = 0;
    }
  }
  ~Arrays() { operator delete[](floats_, kAlignment); }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  int64_t count() const { return count_; }
  float* p() { return floats_; }
  float* g() { return floats_ + count_; }
  float* m() { return floats_ + 2 * count_; }
  float* v() { return floats_ + 3 * count_; }

 private:
  static constexpr std::align_val_t kAlignment{2 << 20};
  int64_t count_;
  float* floats_;
};

using Body = std::function<void(int64_t from, int64_t count)>;

// Megabytes a second of `body`, which moves `bytes` for each element, over two
// passes: a stream loop's second pass restores the arrays.
double Rate(Executor& executor, int64_t count, double bytes, const Body& body) {
  const double seconds =
      TimeTasks(executor, count, body) + TimeTasks(executor, count, body);
  return 2 * static_cast<double>(count) * bytes / 1e6 / seconds;
}

Variant MakeSubject(std::string name, Executor& executor, int64_t count,
                    double bytes, Body body) {
  return {std::move(name), [=, &executor]() -> absl::StatusOr<double> {
            return Rate(executor, count, bytes, body);
          }};
}

// The best of the three stream loops.
Variant MakeBound(Executor& executor, Arrays& a) {
  return {"best stream", [&]() -> absl::StatusOr<double> {
            double best = 0;
            for (const StreamKind kind :
                 {StreamKind::kPlain, StreamKind::kPrefetched,
                  StreamKind::kNonTemporal}) {
              const auto body = [&a, kind](int64_t i, int64_t n) {
                StreamLikeAdam(kind, a.p() + i, a.g() + i, a.m() + i, a.v() + i,
                               n);
              };
              best = std::max(best, Rate(executor, a.count(), 28, body));
            }
            return best;
          }};
}

// fp32: p, m, v read and written, g read. bf16: master, m, v read and written,
// the gradient read, the parameter written. 28 bytes both.
Body UpdateBody(Arrays& a, std::vector<uint16_t>* narrow) {
  const AdamScalars scalars = MakeAdamScalars({}, 10);
  return [&a, narrow, scalars](int64_t i, int64_t n) {
    AdamSpan span{.parameter = a.p() + i,
                  .gradient = a.g() + i,
                  .m = a.m() + i,
                  .v = a.v() + i,
                  .count = n};
    if (narrow != nullptr) {
      span.master = a.p() + i;
      span.parameter = narrow->data() + i;
      span.parameter_dtype = DType::kBFloat16;
      span.gradient = narrow->data() + a.count() + i;
      span.gradient_dtype = DType::kBFloat16;
    }
    AdamUpdate(scalars, 1.0f, span);
  };
}

absl::Status RunPart(int threads, int rounds, Arrays& a,
                     std::vector<uint16_t>& narrow, bool json) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           MakePoolExecutor(threads, {}));
  const auto row = [&](const char* name, double bytes, Body body) {
    return Row{absl::StrCat(name, " x", threads), "MB/s",
               MakeSubject(name, *executor, a.count(), bytes, std::move(body)),
               MakeBound(*executor, a)};
  };
  const std::vector<Row> rows = {
      row("adamw-fp32", 28, UpdateBody(a, nullptr)),
      row("adamw-bf16", 28, UpdateBody(a, &narrow)),
      row("triad", 12,
          [&a](int64_t i, int64_t n) {
            StreamTriad(a.m() + i, a.p() + i, a.g() + i, 0.5f, n);
          }),
      row("norm-fp32", 4,
          [&a](int64_t i, int64_t n) {
            SummarizeGradient(a.g() + i, DType::kFloat32, n);
          }),
      row("checksum", 4,
          [&a](int64_t i, int64_t n) {
            Checksum(a.v() + i, static_cast<size_t>(n) * 4);
          }),
  };
  for (const Row& each : rows) {
    TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(each, rounds));
    PrintRow(each, result, json,
             absl::StrCat("\"threads\":", threads,
                          ",\"parameters\":", a.count(), ",\"rounds\":", rounds,
                          ",\"isa\":\"", InstructionSetName(), "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunAdamBenchmark(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t parameters,
                           flags.number("parameters", 48 << 20));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 15));
  TERRACE_ASSIGN_OR_RETURN(const int64_t threads, flags.number("threads", 0));
  if (parameters < 1 || parameters > (int64_t{1} << 36) || rounds < 1 ||
      rounds > 1000 || threads > 4096) {
    return absl::InvalidArgumentError(absl::StrCat(
        "out of range: --parameters ", parameters, " (1 to 64G), --rounds ",
        rounds, " (1 to 1000), --threads ", threads, " (0 to 4096)"));
  }
  Arrays arrays(parameters);
  std::vector<uint16_t> narrow(2 * static_cast<size_t>(arrays.count()));
  NarrowFromFloat(DType::kBFloat16, arrays.p(), narrow.data(),
                  2 * arrays.count());  // p, then g behind it
  std::vector<int> parts = {static_cast<int>(threads)};
  if (threads == 0) {
    parts = {1};
    const int all = static_cast<int>(std::thread::hardware_concurrency());
    if (all > 1) parts.push_back(all);
  }
  const bool json = flags.has("json");
  PrintHeader(json);
  for (const int part : parts) {
    TERRACE_RETURN_IF_ERROR(
        RunPart(part, static_cast<int>(rounds), arrays, narrow, json));
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
