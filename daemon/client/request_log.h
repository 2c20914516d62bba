// What a process has said to its daemon that the daemon may have lost with its
// end, and what it has there: all that it takes to go on with another daemon,
// which has what was acknowledged. Requests with an answer are acknowledged by
// that, others by the number of what has been done (JobNews::processed).
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"
#include "daemon/wire/job_messages.h"

namespace terrace {

class RequestLog {
 public:
  explicit RequestLog(int64_t memory_bytes) : memory_bytes_(memory_bytes) {}

  // As it is sent, with what was posted by then.
  void Note(const JobRequest& request, uint64_t posted);
  void OnAnswer(uint64_t number, const Answer& answer);
  // Of a queue; before anybody has their pins.
  void OnGroups(int64_t queue, const std::vector<ReadyGroup>& groups);
  void OnRecalls(const std::vector<uint64_t>& tokens);
  void OnProcessed(uint64_t posted);

  // What is to be said to another daemon, in order: a claim, and all that was
  // not acknowledged.
  std::vector<JobRequest> Again() const;
  // Of what was noted last.
  uint64_t posted() const;

 private:
  // By their order.
  using Entries = std::map<uint64_t, JobRequest>;
  struct Told {
    uint64_t posted = 0;
    uint64_t entry = 0;
  };

  void Keep(const JobRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const EndPinRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const KeepRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const CloseQueueRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const WaitingRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(const HoldAtMostRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of what it keeps until it is answered, and what it need not keep.
  template <typename Body>
  void Note(const Body& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Learn(const JobRequest& request, const Answer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Learn(TensorId tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ClaimRequest ClaimLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  // Entries, by the number of the request, and by the queue and tag of the
  // group, of which several may have one; and those that have no answer.
  absl::flat_hash_map<uint64_t, uint64_t> asked_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::pair<int64_t, uint64_t>, std::deque<uint64_t>>
      groups_ ABSL_GUARDED_BY(mutex_);
  std::deque<Told> told_ ABSL_GUARDED_BY(mutex_);
  // What the process has.
  int64_t memory_bytes_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, ClaimedQueue> queues_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> tensors_ ABSL_GUARDED_BY(mutex_);  // ranges' ends
  absl::flat_hash_set<uint64_t> pins_ ABSL_GUARDED_BY(mutex_);
  // Of those, what was asked for back, and whether it was kept.
  absl::flat_hash_map<uint64_t, bool> recalled_ ABSL_GUARDED_BY(mutex_);
  // How many wait that use that pin, of that queue.
  std::map<std::pair<int64_t, uint64_t>, int> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
