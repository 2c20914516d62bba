// Threads of sessions that wait for memory which others are to lend, until the
// daemon's server, which alone decides, has an answer for them.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/jobs/job_name.h"

namespace terrace {

struct RoomWait {
  JobName job;
  int64_t bytes = 0;
  int64_t session = 0;  // whose thread waits
  bool grows = false;   // else it begins with them
  absl::Time deadline;  // by SystemClock()
};

class RoomWaits {
 public:
  // Beyond a deadline, for the server, which may have much to do.
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  // `wake` has the server look, and does not block.
  explicit RoomWaits(std::function<void()> wake) : wake_(std::move(wake)) {}

  // OK: the bytes are charged to the job. ResourceExhausted: they could not be
  // had by the deadline, and why; Unavailable: the daemon ends, or its server
  // does not answer.
  absl::Status Await(RoomWait wait);

  // The server's: those that were not taken yet, by number.
  std::vector<std::pair<uint64_t, RoomWait>> TakeNew();
  // False: that one waits no more.
  bool Answer(uint64_t number, absl::Status answer);
  // All that wait, or will, are told that the daemon ends.
  void End();

 private:
  struct Entry {
    RoomWait wait;
    bool is_taken = false;
    std::optional<absl::Status> answer;
  };

  const std::function<void()> wake_;
  Mutex mutex_;
  CondVar answered_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t numbers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Entry> waits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
