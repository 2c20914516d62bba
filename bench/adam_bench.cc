// The bound of an update is the best of three loops that move its streams
// without its arithmetic (kernels/stream.h), that of the norm and the checksum
// the best of two loops that only read; run between the measured ones, on the
// same arrays, with the same tasks on the same threads and the same instruction
// set. Every rate counts what is read plus what is written, none what a store
// reads of a line.
//
// Arrays lie as in a run: the state in extents of 8 MiB, each a header's room
// and then the arrays of a chunk, in huge pages where the system gives them, as
// in the runtime's arena; parameters and gradients in memory from the
// allocator, as a model's are. A task is a chunk.
#include "bench/adam_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/checksum.h"
#include "kernels/convert.h"
#include "kernels/instruction_set.h"
#include "kernels/norm.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/pool_executor.h"
#include "kernels/stream.h"
#include "optimizer/chunks/chunk_layout.h"

namespace terrace::bench {
namespace {

constexpr int64_t kExtentBytes = 8 << 20;

// Runs body(from, count) over [0, total) in tasks of `task` elements and
// returns the seconds.
double TimeTasks(Executor& executor, int64_t total, int64_t task,
                 const std::function<void(int64_t, int64_t)>& body) {
  Mutex mutex;
  CondVar changed;
  int64_t left = (total + task - 1) / task;
  const double start = Seconds();
  for (int64_t from = 0; from < total; from += task) {
    executor.Run([&, from] {
      body(from, std::min(task, total - from));
      MutexLock lock(mutex);
      if (--left == 0) changed.SignalAll();
    });
  }
  MutexLock lock(mutex);
  while (left > 0) changed.Wait(mutex);
  return Seconds() - start;
}

// Aligned to `alignment` bytes.
class Memory {
 public:
  Memory(int64_t bytes, size_t alignment)
      : alignment_(static_cast<std::align_val_t>(alignment)),
        bytes_(operator new(static_cast<size_t>(bytes), alignment_)) {}
  ~Memory() { operator delete(bytes_, alignment_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* bytes() { return bytes_; }
  float* floats() { return static_cast<float*>(bytes_); }
  uint16_t* halves() { return static_cast<uint16_t*>(bytes_); }

 private:
  const std::align_val_t alignment_;
  void* const bytes_;
};

// Parameters and gradients of a model, 64-byte aligned as LibTorch's are, and
// the room of their state.
class Arrays {
 public:
  explicit Arrays(int64_t count)
      : count_(count),
        state_bytes_(
            (count / ChunkElements(DType::kBFloat16, kExtentBytes) + 1) *
            kExtentBytes),
        state_(state_bytes_, 2 << 20),
        p_(4 * count, 64),
        g_(4 * count, 64),
        narrow_p_(2 * count, 64),
        narrow_g_(2 * count, 64) {
    madvise(state_.bytes(), static_cast<size_t>(state_bytes_), MADV_HUGEPAGE);
  }

  // The values of a first step. The state's bytes are new for each row.
  void Fill(DType dtype) {
    for (int64_t i = 0; i < count_; ++i) {
      p_.floats()[i] = static_cast<float>(i % 7 - 3) * 0.25f;
      g_.floats()[i] = static_cast<float>(i % 11 - 5) * 0.125f;
    }
    std::memset(state_.bytes(), 0, static_cast<size_t>(state_bytes_));
    if (dtype == DType::kFloat32) return;
    NarrowFromFloat(dtype, p_.floats(), narrow_p_.halves(), count_);
    NarrowFromFloat(dtype, g_.floats(), narrow_g_.halves(), count_);
    const int64_t task = TaskElements(dtype);
    for (int64_t i = 0; i < count_; i += task) {
      std::copy_n(p_.floats() + i, std::min(task, count_ - i),
                  StateAt(dtype, i, 0));
    }
  }

  // Elements of a chunk.
  static int64_t TaskElements(DType dtype) {
    return ChunkElements(dtype, kExtentBytes);
  }
  // Element `i`, the first of a chunk, of one of the chunk's arrays.
  float* StateAt(DType dtype, int64_t i, int array) {
    const int64_t elements = TaskElements(dtype);
    auto* const extent = static_cast<std::byte*>(state_.bytes()) +
                         i / elements * kExtentBytes + kTensorHeaderBytes;
    return reinterpret_cast<float*>(extent) + array * elements;
  }
  // Of `n` elements of one chunk.
  AdamSpan Span(DType dtype, int64_t i, int64_t n) {
    if (dtype == DType::kFloat32) {
      return {.parameter = p() + i,
              .gradient = g() + i,
              .m = StateAt(dtype, i, 0),
              .v = StateAt(dtype, i, 1),
              .count = n};
    }
    return {.parameter = narrow_p_.halves() + i,
            .parameter_dtype = dtype,
            .gradient = narrow_g_.halves() + i,
            .gradient_dtype = dtype,
            .master = StateAt(dtype, i, 0),
            .m = StateAt(dtype, i, 1),
            .v = StateAt(dtype, i, 2),
            .count = n};
  }

  int64_t count() const { return count_; }
  float* state() { return state_.floats(); }  // as one array
  float* p() { return p_.floats(); }
  float* g() { return g_.floats(); }
  const void* gradient(DType dtype, int64_t i) {
    if (dtype == DType::kFloat32) return g() + i;
    return narrow_g_.halves() + i;
  }

 private:
  const int64_t count_;
  const int64_t state_bytes_;
  Memory state_, p_, g_, narrow_p_, narrow_g_;
};

using Body = std::function<void(int64_t from, int64_t count)>;

// What a row measures, or is measured against: `bytes` moved for each element,
// in tasks of `task` elements.
struct Work {
  int64_t count;
  int64_t task;
  double bytes;
};

// Megabytes a second of `body` over two passes: a stream loop's second pass
// restores the arrays.
double Rate(Executor& executor, const Work& work, const Body& body) {
  const double seconds = TimeTasks(executor, work.count, work.task, body) +
                         TimeTasks(executor, work.count, work.task, body);
  return 2 * static_cast<double>(work.count) * work.bytes / 1e6 / seconds;
}

// The best of some bodies.
Variant MakeVariant(std::string name, Executor& executor, const Work& work,
                    std::vector<Body> bodies) {
  return {std::move(name), [=, &executor]() -> absl::StatusOr<double> {
            double best = 0;
            for (const Body& body : bodies) {
              best = std::max(best, Rate(executor, work, body));
            }
            return best;
          }};
}

// fp32: p, m, v read and written, g read. 16 bits: master, m, v read and
// written, the gradient read, the parameter written. 28 bytes both, and the
// bound's are those of fp32 streams.
Row UpdateRow(Executor& executor, Arrays& a, DType dtype) {
  const Work work{a.count(), Arrays::TaskElements(dtype), 28};
  std::vector<Body> streams;
  for (const StreamKind kind : {StreamKind::kPlain, StreamKind::kPrefetched,
                                StreamKind::kNonTemporal}) {
    streams.push_back([&a, kind, dtype](int64_t i, int64_t n) {
      const AdamSpan span = a.Span(dtype, i, n);
      StreamLikeAdam(kind, span.master != nullptr ? span.master : a.p() + i,
                     a.g() + i, span.m, span.v, n);
    });
  }
  const AdamScalars scalars = MakeAdamScalars({}, 10);
  const Body update = [&a, dtype, scalars](int64_t i, int64_t n) {
    AdamUpdate(scalars, 1.0f, a.Span(dtype, i, n));
  };
  return {absl::StrCat("adamw-", DTypeName(dtype)), "MB/s",
          MakeVariant("update", executor, work, {update}),
          MakeVariant("best stream", executor, work, streams)};
}

// STREAM's, for comparison with what others publish.
Row TriadRow(Executor& executor, Arrays& a) {
  Row row = UpdateRow(executor, a, DType::kFloat32);
  row.key = "triad";
  const Work work{a.count(), 1 << 19, 12};
  row.subject =
      MakeVariant("triad", executor, work, {[&a](int64_t i, int64_t n) {
                    StreamTriad(a.state() + i, a.p() + i, a.g() + i, 0.5f, n);
                  }});
  return row;
}

// Of what reads a gradient once.
Row ReadRow(std::string key, Executor& executor, Arrays& a, DType dtype,
            Body body) {
  const auto bytes = static_cast<double>(DTypeBytes(dtype));
  const Work work{a.count(), 1 << 19, bytes};
  std::vector<Body> loops;
  for (const StreamKind kind : {StreamKind::kPlain, StreamKind::kPrefetched}) {
    loops.push_back([&a, kind, dtype](int64_t i, int64_t n) {
      StreamRead(kind, static_cast<const uint32_t*>(a.gradient(dtype, i)),
                 n * DTypeBytes(dtype) / 4);
    });
  }
  return {std::move(key), "MB/s",
          MakeVariant("kernel", executor, work, {std::move(body)}),
          MakeVariant("best read", executor, work, loops)};
}

std::vector<Row> RowsOf(Executor& executor, Arrays& a, DType dtype) {
  return {UpdateRow(executor, a, dtype),
          ReadRow(absl::StrCat("norm-", DTypeName(dtype)), executor, a, dtype,
                  [&a, dtype](int64_t i, int64_t n) {
                    SummarizeGradient(a.gradient(dtype, i), dtype, n);
                  })};
}

absl::Status RunPart(int threads, int rounds, Arrays& a, bool json) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           MakePoolExecutor(threads, {}));
  const auto run = [&](Row row) -> absl::Status {
    const std::string set = InstructionSetName();
    absl::StrAppend(&row.key, " ", set, " x", threads);
    TERRACE_ASSIGN_OR_RETURN(const RowResult result, RunRow(row, rounds));
    PrintRow(
        row, result, json,
        absl::StrCat("\"threads\":", threads, ",\"parameters\":", a.count(),
                     ",\"rounds\":", rounds, ",\"isa\":\"", set, "\""));
    return absl::OkStatus();
  };
  std::vector<std::string> sets = AvailableInstructionSets();
  if (sets.size() > 1) sets.pop_back();  // scalar: for its bits
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::string& set : sets) {
      TERRACE_RETURN_IF_ERROR(ForceInstructionSet(set));
      a.Fill(dtype);
      for (Row& row : RowsOf(*executor, a, dtype)) {
        TERRACE_RETURN_IF_ERROR(run(std::move(row)));
      }
    }
  }
  TERRACE_RETURN_IF_ERROR(ForceInstructionSet(""));
  a.Fill(DType::kFloat32);
  TERRACE_RETURN_IF_ERROR(run(TriadRow(*executor, a)));
  return run(ReadRow("checksum", *executor, a, DType::kFloat32,
                     [&a](int64_t i, int64_t n) {
                       Checksum(a.g() + i, static_cast<size_t>(n) * 4);
                     }));
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
  Arrays arrays((parameters + 15) / 16 * 16);
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
        RunPart(part, static_cast<int>(rounds), arrays, json));
  }
  return absl::OkStatus();
}

}  // namespace terrace::bench
