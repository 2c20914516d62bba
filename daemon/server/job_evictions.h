// Who waits for what leaves the memory of a job's runtimes: each is told, and
// answers by and by. One that does not answer in time is named, and holds up
// nobody.
//
// It belongs to the server's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/server/job_table.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/envelope.h"

namespace terrace {

class JobEvictions {
 public:
  // What a runtime has to answer, once it has had what it was given.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr absl::Duration kMostTime = absl::Hours(1);

  // A connection's, which has one question at a time.
  struct Question {
    int fd = -1;
    uint64_t sequence = 0;
    std::optional<uid_t> owner;  // whose jobs it may have evict; nothing: all
    EvictionRequest request;
  };
  struct Answer {
    int fd = -1;
    uint64_t sequence = 0;
    EvictionReport report;
  };

  // `jobs` outlives it.
  explicit JobEvictions(JobTable* jobs) : jobs_(*jobs) {}

  // NotFound: nobody has such a job, or not that process. InvalidArgument:
  // several users have one; a time that is none. PermissionDenied: it is
  // another's.
  absl::Status Add(const Question& question, absl::Time now);
  // The connection is gone; what has begun goes on.
  void Forget(int fd);
  // What is due; tells those that are to be told.
  std::vector<Answer> Take(absl::Time now);
  // When to call Take at the latest.
  absl::Time next() const;

 private:
  struct Part {
    int64_t session = 0;
    uint64_t ticket = 0;  // 0: it is not told yet
    bool is_over = false;
  };
  struct Waiting {
    int fd = -1;
    uint64_t sequence = 0;
    absl::Time until;  // what leaves has so long
    EvictionReport report;
    std::vector<Part> parts;  // of its processes
    int64_t left = 0;         // of those that are not over
  };

  void Serve(Waiting& waiting, absl::Time now);
  // Whether it is over.
  bool Serve(absl::Time until, absl::Time now, Part& part,
             EvictionReport::Process& process);
  void End(Part& part);

  JobTable& jobs_;
  uint64_t tickets_ = 0;
  // A runtime does this for one at a time: sessions where it does.
  absl::flat_hash_set<int64_t> told_;
  std::vector<Waiting> waiting_;
};

}  // namespace terrace
