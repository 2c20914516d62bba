// What a daemon's metrics are made of: values, as its server has them now.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/jobs/job_totals.h"
#include "daemon/metrics/metrics_board.h"

namespace terrace {

struct MetricsReport {
  struct Tier {
    std::string name;
    bool is_memory = false;
    int64_t budget_bytes = 0;
    int64_t used_bytes = 0;  // counted to jobs
    bool is_degraded = false;
  };
  struct User {
    uint32_t uid = 0;
    int64_t connections = 0;
    int64_t connection_limit = 0;
  };
  // What a job has of a tier, as far as its runtimes have said.
  struct JobTier {
    std::string name;
    int64_t counted_bytes = 0;
    int64_t pinned_bytes = 0;
    int64_t dirty_bytes = 0;
    int64_t clean_bytes = 0;
    int64_t quota_bytes = 0;  // at most
    bool is_degraded = false;
  };
  struct Job {
    uint32_t uid = 0;
    std::string name;
    int64_t processes = 0;
    std::vector<JobTier> tiers;
    JobTotals totals;
  };
  // Of the daemon's process.
  struct Process {
    int64_t anonymous_bytes = 0;
    int64_t file_bytes = 0;
    int64_t shared_bytes = 0;  // memory of jobs among it
    int64_t descriptors = 0;
    double start_seconds = 0;  // since the epoch
  };

  std::string version;
  DaemonPhase phase = DaemonPhase::kStarting;
  std::vector<Tier> tiers;
  std::vector<User> users;
  int64_t connections = 0;  // control connections and jobs' processes
  std::vector<Job> jobs;
  JobTotals totals;  // of all jobs, those that are gone too
  std::map<absl::StatusCode, int64_t> refusals;
  int64_t loops = 0;
  int64_t unanswered = 0;  // runtimes whose numbers are older
  Process process;
};

// In Prometheus's text format.
std::string MetricsTextOf(const MetricsReport& report);

// Of /proc; what cannot be read is 0.
MetricsReport::Process ReadOwnProcess();

}  // namespace terrace
