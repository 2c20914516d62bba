// What a daemon owes answers to: the process's requests that were sent, by
// their numbers, each with the kind of answer that is due; and since when
// these, and groups, are under way.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/client/under_way.h"
#include "daemon/wire/job_messages.h"

namespace terrace {

// Of a question that is the relay's own, which no port asks.
inline constexpr uint64_t kOwnNumber = UINT64_MAX;

// What a request is answered by, if by no error.
struct Due {
  enum class Kind : uint8_t {
    kStatus,
    kTensors,
    kQueue,
    kBytes,  // a queue of them
    kStats,
    kClose
  };
  Kind kind = Kind::kStatus;
  size_t tensors = 0;
  absl::Duration takes;  // that the daemon says nothing else for
};

class Dues {
 public:
  // Nothing, where the request has no answer.
  void Note(const JobRequest& request, absl::Time now);
  // Once: nothing is due to that number then. None: nothing was.
  std::optional<Due> Take(uint64_t number);
  std::vector<std::pair<uint64_t, Due>> TakeAll();
  bool Has(uint64_t number) const;
  // How long all of them together may take.
  absl::Duration Allowed() const;

  // Groups that have an answer, and all of a queue that is closed.
  void EndGroups(int64_t queue, const std::vector<ReadyGroup>& groups);
  void EndQueue(int64_t queue);
  // Since when anything but the relay's own question is under way. Infinite:
  // nothing is. Looks at all.
  absl::Time oldest() const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Due> dues_ ABSL_GUARDED_BY(mutex_);
  absl::Duration allowed_ ABSL_GUARDED_BY(mutex_);
  UnderWay under_way_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
