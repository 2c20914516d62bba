#include "bench/mover_bench.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "terrace/byte_queue.h"
#include "terrace/runtime.h"

namespace terrace::bench {
namespace {

constexpr int64_t kPage = 4096;
constexpr int kSlots = 16;
constexpr int64_t kTransfers = 200'000;  // that a figure is made from

absl::Time Soon() { return absl::Now() + absl::Minutes(5); }

// The newest thread of this process: the mover's, which a runtime starts last.
std::string NewestThread() {
  int64_t newest = 0;
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/self/task")) {
    newest = std::max<int64_t>(newest, std::stoll(each.path().filename()));
  }
  return absl::StrCat("/proc/self/task/", newest, "/schedstat");
}

double SecondsOf(const std::string& thread) {
  std::ifstream file(thread);
  double nanoseconds = 0;
  file >> nanoseconds;
  return nanoseconds / 1e9;
}

double HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

struct Figures {
  double register_seconds = 0;
  double registered_bytes = 0;  // a tensor
  double stepped_bytes = 0;     // a tensor
  double transfer_seconds = 0;  // of the mover's thread
};

std::vector<TensorSpec> Specs(int count) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < count; ++i) {
    specs.push_back({.name = absl::StrCat("tensor ", i), .size_bytes = kPage});
  }
  return specs;
}

absl::Status Step(RequestQueue& queue, absl::Span<const TensorId> tensors,
                  int64_t step) {
  TERRACE_RETURN_IF_ERROR(queue.BeginStep(step));
  const Access access = step == 1 ? Access::kOverwrite : Access::kUpdate;
  for (const TensorId tensor : tensors) {
    const Want want{tensor, access};
    TERRACE_RETURN_IF_ERROR(queue.Push({&want, 1}, 0, Soon()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(Ready ready, queue.Next(Soon()));
    TERRACE_RETURN_IF_ERROR(ready.pins.status());
  }
  return queue.CommitStep({.step = step});
}

absl::StatusOr<Figures> Measure(const std::string& path, int count) {
  Options options;
  options.host_budget_bytes = WindowBytes(kPage, kSlots) + 3 * 2 * kPage;
  options.paths = {path};
  options.engine = EngineKind::kThreads;
  options.threads = 1;
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Create(options));
  const std::string mover = NewestThread();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RequestQueue> queue,
                           runtime->OpenQueue(kPage, kSlots, Soon()));
  const std::vector<TensorSpec> specs = Specs(count);
  Figures figures;
  const double before = HeapBytes();
  const auto start = std::chrono::steady_clock::now();
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorId> tensors,
                           runtime->Register(specs));
  figures.register_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  const auto bytes_each = [&] { return (HeapBytes() - before) / count; };
  figures.registered_bytes = bytes_each();
  TERRACE_RETURN_IF_ERROR(Step(*queue, tensors, 1));
  TERRACE_RETURN_IF_ERROR(Step(*queue, tensors, 2));
  figures.stepped_bytes = bytes_each();
  const double begun = SecondsOf(mover);
  const int64_t steps = std::max<int64_t>(1, kTransfers / (2 * count));
  for (int64_t step = 0; step < steps; ++step) {
    TERRACE_RETURN_IF_ERROR(Step(*queue, tensors, 3 + step));
  }
  figures.transfer_seconds =
      (SecondsOf(mover) - begun) / static_cast<double>(steps * 2 * count);
  queue.reset();
  TERRACE_RETURN_IF_ERROR(runtime->Close(Soon()));
  return figures;
}

void PrintRatio(const char* what, const std::vector<double>& ratios) {
  const Spread ratio = SpreadOf(ratios);
  std::printf("%s: %.3f (%.3f to %.3f)\n", what, ratio.median, ratio.minimum,
              ratio.maximum);
}

// Seconds of the mover's thread for a request that is served at once, while so
// many other queues of both kinds are open and idle. Those with slots have made
// two steps, so that what they use next is known.
absl::StatusOr<double> RequestSeconds(const std::string& path, int idle) {
  constexpr int kRequests = 20'000;
  Options options;
  options.host_budget_bytes = (idle + 4) * WindowBytes(kPage, 1);
  options.paths = {path};
  options.engine = EngineKind::kThreads;
  options.threads = 1;
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Create(options));
  const std::string mover = NewestThread();
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorId> tensors,
                           runtime->Register(Specs(1 + idle / 2)));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<ByteQueue> asks,
                           runtime->OpenBytes(2 * kPage));
  std::vector<std::unique_ptr<ByteQueue>> bytes(static_cast<size_t>(idle / 2));
  std::vector<std::unique_ptr<RequestQueue>> slots(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(bytes[i], runtime->OpenBytes(1));
    TERRACE_ASSIGN_OR_RETURN(slots[i], runtime->OpenQueue(kPage, 1, Soon()));
    for (const int64_t step : {1, 2}) {
      TERRACE_RETURN_IF_ERROR(Step(*slots[i], {&tensors[1 + i], 1}, step));
    }
  }
  const Want want{tensors.front(), Access::kOverwrite};
  double begun = 0;
  for (int i = 0; i <= kRequests; ++i) {
    if (i == 1) begun = SecondsOf(mover);
    TERRACE_ASSIGN_OR_RETURN(const uint64_t request,
                             asks->Push({&want, 1}, {}, Soon()));
    Awaited news;
    while (!news.pins.has_value()) {
      TERRACE_ASSIGN_OR_RETURN(news, asks->Await(request, Soon()));
    }
    TERRACE_RETURN_IF_ERROR(news.pins->status());
  }
  const double seconds = (SecondsOf(mover) - begun) / kRequests;
  asks.reset();
  bytes.clear();
  slots.clear();
  TERRACE_RETURN_IF_ERROR(runtime->Close(Soon()));
  return seconds;
}

absl::Status RunIdleQueues(const std::string& path, int64_t rounds) {
  std::vector<double> ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    double each[2] = {};
    int i = 0;
    for (const int idle : {10, 10'000}) {
      TERRACE_ASSIGN_OR_RETURN(each[i], RequestSeconds(path, idle));
      std::printf("%5d idle queues: %.2f us of the mover a request\n", idle,
                  each[i++] * 1e6);
    }
    ratios.push_back(each[1] / each[0]);
  }
  PrintRatio("a request beside 10,000 idle queues to one beside 10", ratios);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMoverBenchmark(const Flags& flags) {
  const std::string path = flags.text("path", "/dev/shm");
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  std::vector<double> ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    double each[2] = {};
    int i = 0;
    for (const int count : {1'000, 100'000}) {
      TERRACE_ASSIGN_OR_RETURN(const Figures figures, Measure(path, count));
      std::printf(
          "%7d tensors: registered in %.3f s, %.0f bytes each, %.0f after "
          "steps; %.2f us of the mover a transfer\n",
          count, figures.register_seconds, figures.registered_bytes,
          figures.stepped_bytes, figures.transfer_seconds * 1e6);
      each[i++] = figures.transfer_seconds;
    }
    ratios.push_back(each[1] / each[0]);
  }
  PrintRatio("a transfer with 100,000 tensors to one with 1,000", ratios);
  return RunIdleQueues(path, rounds);
}

}  // namespace terrace::bench
