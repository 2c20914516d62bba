// Who waits for a page of tensors: the runtime that has them is asked, and
// answers by and by. One that does not answer in time holds nobody up: the page
// says so, and the next one is of another session.
//
// It belongs to the server's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "daemon/server/job_table.h"
#include "daemon/wire/daemon_status.h"

namespace terrace {

class TensorListings {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // A connection's, which has one question at a time.
  struct Question {
    int fd = -1;
    uint64_t sequence = 0;
    std::optional<uid_t> owner;  // whose sessions it sees; nothing: all
    TensorsRequest request;
  };
  struct Answer {
    int fd = -1;
    uint64_t sequence = 0;
    TensorsPage page;
  };

  // `jobs` outlives it.
  explicit TensorListings(JobTable* jobs) : jobs_(*jobs) {}

  void Add(const Question& question, absl::Time now);
  // The connection is gone.
  void Forget(int fd);
  // What is due; asks what is to be asked.
  std::vector<Answer> Take(absl::Time now);
  // When to call Take at the latest.
  absl::Time next() const;

 private:
  struct Waiting {
    Question question;
    int64_t session = 0;
    absl::Time deadline;
    bool is_asked = false;
  };

  // Nothing: it is not due yet.
  std::optional<TensorsPage> Serve(Waiting& waiting, absl::Time now);
  // A runtime is asked one thing at a time.
  bool IsAsked(int64_t session) const;

  JobTable& jobs_;
  std::vector<Waiting> waiting_;
};

}  // namespace terrace
