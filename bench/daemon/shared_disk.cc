#include "bench/daemon/shared_disk.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "bench/daemon/job_load.h"
#include "bench/daemon/terraced_process.h"

namespace terrace::bench {
namespace {

// What a limit in flight takes to pass, at most (aio/queue/in_flight_limit.h):
// 1.65 ms, or two pieces of 256 KiB.
double LimitSeconds(int64_t rate) {
  return std::max(1.65e-3,
                  static_cast<double>(512 << 10) / static_cast<double>(rate));
}

struct JobResult {
  double rate = 0;  // bytes a second
  std::vector<double> waits;
};

struct Setting {
  std::string address;
  absl::Duration warm_up;
  absl::Duration window;
};

// A job of so many processes of one kind.
struct JobPlan {
  LoadOptions load;
  int processes = 1;
};

// All at once; in the order of `plans`.
absl::StatusOr<std::vector<JobResult>> RunJobs(
    const Setting& setting, const std::vector<JobPlan>& plans) {
  std::vector<std::vector<std::unique_ptr<LoadProcess>>> jobs;
  for (const JobPlan& plan : plans) {
    auto& job = jobs.emplace_back();
    for (int i = 0; i < plan.processes; ++i) {
      TERRACE_ASSIGN_OR_RETURN(
          job.emplace_back(), LoadProcess::Connect(setting.address, plan.load));
    }
  }
  for (const auto& job : jobs) {
    for (const auto& process : job) process->Begin();
  }
  const auto read = [&jobs] {
    std::vector<std::pair<double, int64_t>> all;
    for (const auto& job : jobs) {
      int64_t bytes = 0;
      for (const auto& process : job) bytes += process->BytesRead();
      all.emplace_back(Seconds(), bytes);
    }
    return all;
  };
  absl::SleepFor(setting.warm_up);
  const auto before = read();
  absl::SleepFor(setting.window);
  const auto after = read();
  std::vector<JobResult> results(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    results[i].rate = static_cast<double>(after[i].second - before[i].second) /
                      (after[i].first - before[i].first);
    for (const auto& process : jobs[i]) {
      TERRACE_RETURN_IF_ERROR(process->Stop());
      const auto& waits = process->waits();
      results[i].waits.insert(results[i].waits.end(), waits.begin(),
                              waits.end());
    }
  }
  return results;
}

JobPlan Reader(const std::string& job) { return {{.job = job}}; }

// Asks for more at a time than all others, from several processes.
JobPlan Flood() {
  return {{.job = "flood", .tensors = 24, .slots = 16}, /*processes=*/4};
}

// One tensor at a time, small, and then nothing for a while.
JobPlan Waiter(const std::string& job) {
  return {{.job = job,
           .tensor_bytes = 64 << 10,
           .tensors = 64,
           .slots = 1,
           .pause = absl::Milliseconds(3)}};
}

double Of(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const size_t at =
      static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at),
                   values.end());
  return values[at];
}

// A figure of each round, with what it is to be.
class Figures {
 public:
  explicit Figures(bool json) : json_(json) {}

  void Add(const std::string& what, const std::string& bar, double value) {
    for (auto& each : all_) {
      if (each.what == what) return each.values.push_back(value);
    }
    all_.push_back({what, bar, {value}});
  }
  void Print() const {
    for (const auto& each : all_) {
      const Spread spread = SpreadOf(each.values);
      absl::PrintF(json_ ? "{\"row\": \"%s\", \"bar\": \"%s\", \"ratio\": "
                           "[%.3f, %.3f, %.3f]}\n"
                         : "%-44s %-14s %.3f / %.3f / %.3f\n",
                   each.what, each.bar, spread.minimum, spread.median,
                   spread.maximum);
    }
  }

 private:
  struct Figure {
    std::string what;
    std::string bar;
    std::vector<double> values;
  };
  const bool json_;
  std::vector<Figure> all_;
};

absl::Status RunRound(const Setting& setting, int64_t rate, Figures* figures) {
  TERRACE_ASSIGN_OR_RETURN(const auto alone, RunJobs(setting, {Reader("a")}));
  figures->Add("one alone, of the pace", "",
               alone[0].rate / static_cast<double>(rate));
  TERRACE_ASSIGN_OR_RETURN(const auto equal,
                           RunJobs(setting, {Reader("a"), Reader("b")}));
  const double both = equal[0].rate + equal[1].rate;
  figures->Add("of two that are equal the first, of half", "0.95 to 1.05",
               2 * equal[0].rate / both);
  figures->Add("both together, of one alone", ">= 0.97", both / alone[0].rate);
  TERRACE_ASSIGN_OR_RETURN(const auto heavy,
                           RunJobs(setting, {Reader("heavy"), Reader("b")}));
  figures->Add("of weights 3:1 the heavy one, of 3/4", "0.95 to 1.05",
               heavy[0].rate / (heavy[0].rate + heavy[1].rate) / 0.75);
  figures->Add("of weights 3:1 the light one, of 1/4", "0.95 to 1.05",
               heavy[1].rate / (heavy[0].rate + heavy[1].rate) / 0.25);
  TERRACE_ASSIGN_OR_RETURN(
      const auto third, RunJobs(setting, {Reader("a"), Reader("b"), Flood()}));
  const double all = third[0].rate + third[1].rate + third[2].rate;
  figures->Add("a third that floods, of a third", "<= 1.05",
               3 * third[2].rate / all);
  figures->Add("the least of the other two, of a third", ">= 0.95",
               3 * std::min(third[0].rate, third[1].rate) / all);
  TERRACE_ASSIGN_OR_RETURN(
      const auto waits, RunJobs(setting, {Waiter("a"), Waiter("b"), Flood()}));
  std::vector<double> demands = waits[0].waits;
  demands.insert(demands.end(), waits[1].waits.begin(), waits[1].waits.end());
  figures->Add("p99 of demands beside it, of limit / rate", "<= 2",
               Of(demands, 0.99) / LimitSeconds(rate));
  TERRACE_ASSIGN_OR_RETURN(const auto quiet,
                           RunJobs(setting, {Waiter("a"), Waiter("b")}));
  demands = quiet[0].waits;
  demands.insert(demands.end(), quiet[1].waits.begin(), quiet[1].waits.end());
  figures->Add("p99 of demands without it, of limit / rate", "",
               Of(demands, 0.99) / LimitSeconds(rate));
  figures->Add("median of demands without it, of limit / rate", "",
               Of(demands, 0.5) / LimitSeconds(rate));
  figures->Add("the flood beside them, of the pace", "",
               waits[2].rate / static_cast<double>(rate));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDaemonLinks(const Flags& flags) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t rounds, flags.number("rounds", 5));
  TERRACE_ASSIGN_OR_RETURN(const int64_t pace, flags.number("pace", 400));
  TERRACE_ASSIGN_OR_RETURN(const int64_t window_ms,
                           flags.number("window", 3000));
  const std::string config =
      absl::StrCat("pace = '", pace, "MB/s'\nlog = 'info'\n[users.", getuid(),
                   ".jobs.heavy]\nweight = 3\n");
  TERRACE_ASSIGN_OR_RETURN(
      const std::unique_ptr<TerracedProcess> daemon,
      TerracedProcess::Start(flags.text("path", "/dev/shm"), config));
  const Setting setting = {daemon->address(), absl::Milliseconds(window_ms / 6),
                           absl::Milliseconds(window_ms)};
  Figures figures(flags.has("json"));
  for (int64_t round = 0; round < rounds; ++round) {
    TERRACE_RETURN_IF_ERROR(RunRound(setting, pace * 1'000'000, &figures));
  }
  figures.Print();
  return absl::OkStatus();
}

}  // namespace terrace::bench
