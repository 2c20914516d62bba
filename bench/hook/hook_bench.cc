// terrace-bench-hook: what the hook costs operations whose tensors are all in
// memory, beside the same loop without it.
//
//   terrace-bench-hook [--rounds N] [--json]
//   terrace-bench-hook --fetches [--rounds N] [--json]
//   terrace-bench-hook --allocations [--rounds N] [--json]
//
// With --fetches it prints what tensors that are away cost (fetch_bench.h),
// with --allocations what new tensors cost beside placements
// (placement_bench.h).
// Otherwise:
//
// Each round runs each operation in four states, in rotated order, on the
// thread's own CPU time, so that what else the machine runs takes no part:
//   alone    no hook
//   idle     a hook that manages nothing
//   seen     a hook that manages another tensor: operations are seen
//   managed  a hook that manages the operation's own tensors, which are there
// An operation is several of LibTorch's events; a nanosecond figure is given
// for the operation and for each event of it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/harness.h"
#include "bench/hook/fetch_bench.h"
#include "bench/hook/placement_bench.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace terrace::bench {
namespace {

enum class State : uint8_t { kAlone, kIdle, kSeen, kManaged };
constexpr int kStates = 4;
constexpr const char* kStateNames[] = {"alone", "idle", "seen", "managed"};
constexpr double kRunSeconds = 0.02;

struct Operation {
  const char* name;
  std::function<std::vector<at::Tensor>()> make;
  std::function<void(const std::vector<at::Tensor>&)> run;
};

std::vector<at::Tensor> Hundred() {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back(at::ones({16}));
  return tensors;
}

std::vector<at::Tensor> Two() { return {at::ones({16}), at::ones({16})}; }

const std::vector<Operation>& Operations() {
  using Tensors = std::vector<at::Tensor>;
  static const auto& operations = *new std::vector<Operation>{
      {"add_", Two, [](const Tensors& t) { t[0].add_(t[1]); }},
      {"add", Two, [](const Tensors& t) { at::add(t[0], t[1]); }},
      {"view", Two,
       [](const Tensors& t) {
         t[0].view({4, 4});
       }},
      {"linear",
       [] {
         return Tensors{at::ones({8, 8}), at::ones({8}), at::ones({8, 8})};
       },
       [](const Tensors& t) { at::linear(t[2], t[0], t[1]); }},
      {"cat of 100", Hundred, [](const Tensors& t) { at::cat(t); }},
      {"_foreach_add_ of 100", Hundred,
       [](const Tensors& t) { at::_foreach_add_(t, 1); }}};
  return operations;
}

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// Of FUNCTION scope, as the hook sees them.
int64_t EventsOf(const Operation& operation) {
  static int64_t events = 0;
  events = 0;
  const std::vector<at::Tensor> tensors = operation.make();
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&)
                                     -> std::unique_ptr<at::ObserverContext> {
        ++events;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  operation.run(tensors);
  at::removeCallback(handle);
  return events;
}

absl::StatusOr<std::unique_ptr<Hook>> MakeHook(
    Runtime& runtime, const std::vector<at::Tensor>& managed) {
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Hook> hook,
      Hook::Create(runtime, {.window_bytes = int64_t{8} << 20}));
  std::vector<NamedTensor> named;
  for (const at::Tensor& each : managed) {
    named.push_back({absl::StrCat("t", named.size()), each});
  }
  TERRACE_RETURN_IF_ERROR(hook->Manage(named));
  return hook;
}

// Nanoseconds an operation.
absl::StatusOr<double> Measure(Runtime& runtime, const Operation& operation,
                               State state) {
  const std::vector<at::Tensor> tensors = operation.make();
  std::vector<at::Tensor> managed;
  if (state == State::kSeen) managed = {at::ones({16})};
  if (state == State::kManaged) managed = tensors;
  std::unique_ptr<Hook> hook;
  if (state != State::kAlone) {
    TERRACE_ASSIGN_OR_RETURN(hook, MakeHook(runtime, managed));
  }
  int64_t count = 0;
  int64_t batch = 8;
  operation.run(tensors);  // the callbacks' lists of this thread are made anew
  double seconds = 0;
  while (seconds < kRunSeconds) {
    const double start = ThreadSeconds();
    for (int64_t i = 0; i < batch; ++i) operation.run(tensors);
    seconds = ThreadSeconds() - start;
    count = batch;
    batch *= 2;
  }
  if (hook != nullptr) {
    TERRACE_RETURN_IF_ERROR(hook->Close(Hook::AtClose::kRestore));
  }
  return 1e9 * seconds / static_cast<double>(count);
}

absl::Status RunOperation(Runtime& runtime, const Operation& operation,
                          int64_t rounds, bool json) {
  std::vector<double> times[kStates];
  std::vector<double> added[kStates];  // within a round
  const auto events = static_cast<double>(EventsOf(operation));
  for (int64_t round = 0; round <= rounds; ++round) {
    double now[kStates] = {};
    for (int turn = 0; turn < kStates; ++turn) {
      const int which = static_cast<int>((round + turn) % kStates);
      TERRACE_ASSIGN_OR_RETURN(
          now[which], Measure(runtime, operation, static_cast<State>(which)));
    }
    if (round == 0) continue;  // warms up
    for (int which = 0; which < kStates; ++which) {
      times[which].push_back(now[which]);
      added[which].push_back(now[which] - now[0]);
    }
  }
  if (!json) {
    absl::PrintF("%-21s %6.0f events", operation.name, events);
  }
  for (int which = 0; which < kStates; ++which) {
    const Spread time = SpreadOf(times[which]);
    const Spread more = SpreadOf(added[which]);
    if (json) {
      absl::PrintF(
          "{\"operation\":\"%s\",\"events\":%.0f,\"state\":\"%s\","
          "\"ns\":[%.0f,%.0f,%.0f],\"added_ns\":[%.0f,%.0f,%.0f]}\n",
          operation.name, events, kStateNames[which], time.minimum, time.median,
          time.maximum, more.minimum, more.median, more.maximum);
    } else if (which == 0) {
      absl::PrintF("  alone %.0f ns", time.median);
    } else {
      absl::PrintF("  %s %+.0f (%.0f an event)", kStateNames[which],
                   more.median, more.median / events);
    }
  }
  if (!json) absl::PrintF("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  TERRACE_ASSIGN_OR_RETURN(
      const Flags flags,
      Flags::Parse(argc, argv, {"rounds", "json", "fetches", "allocations"}));
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 15));
  at::set_num_threads(1);
  if (flags.has("fetches")) return RunFetches(rounds, flags.has("json"));
  if (flags.has("allocations")) {
    return RunAllocations(rounds, flags.has("json"));
  }
  Options options;
  options.host_budget_bytes = int64_t{16} << 20;
  options.memory_paths = 1;
  options.memory_path_bytes = int64_t{16} << 20;
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Create(options));
  for (const Operation& operation : Operations()) {
    TERRACE_RETURN_IF_ERROR(
        RunOperation(*runtime, operation, rounds, flags.has("json")));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) {
  const absl::Status status = terrace::bench::Run(argc - 1, argv + 1);
  if (status.ok()) return 0;
  std::fprintf(stderr, "terrace-bench-hook: %s\n", status.ToString().c_str());
  return 1;
}
