// What a daemon is asked beside its jobs, and what it answers. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/messages/answers.h"

namespace terrace {

// Answered by DaemonStatus.
struct StatusRequest {};

struct DaemonStatus {
  struct Tier {
    std::string name;  // as TierName has it
    int64_t budget_bytes = 0;
    int64_t used_bytes = 0;
    std::string fault;  // why it takes no writes; "": it does
  };
  struct User {
    uint32_t uid = 0;
    int32_t connections = 0;
    int32_t connection_limit = 0;
  };

  // By state as its runtimes said last (terrace/stats.h).
  struct TierBytes {
    std::string name;
    int64_t used_bytes = 0;
    int64_t pinned_bytes = 0;
    int64_t dirty_bytes = 0;
    int64_t clean_bytes = 0;
  };
  // Those of a user's processes that are connected as one job.
  struct Job {
    uint32_t uid = 0;
    std::string name;  // "": of those that have none
    int32_t processes = 0;
    std::vector<TierBytes> tiers;  // that it has of
    // Moved to memory and from it, and how long its queues were held up by
    // that, as its runtimes said last.
    int64_t bytes_up = 0;
    int64_t bytes_down = 0;
    double stalled_seconds = 0;
  };
  // A loop of the daemon's threads that does not turn.
  struct Loop {
    std::string name;     // "mover of process 4711"
    int64_t process = 0;  // that it is for; 0: for all
    int64_t silent_for_ms = 0;
  };

  std::string version;
  int64_t pid = 0;
  std::string phase;          // "serving", "draining", ...
  int64_t silent_for_ms = 0;  // since the mover of its runtime last answered
  std::vector<Tier> tiers;
  // All that are connected, for operators; else the asker, and its jobs.
  std::vector<User> users;
  std::vector<Job> jobs;
  int64_t loops = 0;  // that are watched
  // Those of the daemon itself, and of the jobs above.
  std::vector<Loop> stopped;
};

// For a page of tensors, of the first session from that number on that is the
// asker's, or anyone's for operators. Answered by TensorsPage.
struct TensorsRequest {
  int64_t session = 0;
  int64_t after = -1;  // this tensor's id
};

struct TensorsPage {
  uint32_t uid = 0;
  std::string job;
  int64_t process = 0;
  std::vector<ListedTensor> tensors;
  std::string fault;  // why there are none of that session; "": there may be
  // What the next request names; negative: there is no further page.
  int64_t next_session = -1;
  int64_t next_after = -1;
};

// No new jobs from here on; those that are there end by themselves, or after so
// many seconds. For operators. Answered by DaemonStatus.
struct DrainRequest {
  int64_t seconds = -1;  // negative: as long as they take
};

// What nobody has pinned leaves the memory of a job's runtimes, as EvictRequest
// (runtime/messages/requests.h) has it. Answered by EvictionReport, once all of
// them have answered or the time is over. For the job's user, and for
// operators.
struct EvictionRequest {
  std::string job;  // "": of processes that have none
  // Negative: the only one who has such a job, of those whom the asker sees.
  int64_t uid = -1;
  int64_t process = 0;  // 0: all of the job's
  int64_t timeout_ms = 30'000;
};

struct EvictionReport {
  struct Process {
    int64_t process = 0;
    Evicted evicted;
    std::string fault;  // why nothing is known of it; "": that is what it did
  };

  uint32_t uid = 0;
  std::string job;
  std::vector<Process> processes;
};

}  // namespace terrace
