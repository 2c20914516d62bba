// Counts what a path's device was asked and what it moved, and how long it had
// requests of either direction.
//
// One thread at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "aio/io_transfer.h"

namespace terrace {

class PathMeter {
 public:
  void OnIssue(const IoRequest& request, absl::Time now) {
    Change(request.direction, +1, now);
    stats_.in_flight_bytes += request.size_bytes;
    ++(IsRead(request) ? stats_.requests_read : stats_.requests_written);
  }
  // `result` as of IoResult; of a request that is late if `quarantined`.
  void OnAnswer(const IoRequest& request, int64_t result, bool quarantined,
                absl::Time now) {
    stats_.in_flight_bytes -= request.size_bytes;
    if (quarantined) {
      stats_.quarantined_bytes -= request.size_bytes;
    } else {
      Change(request.direction, -1, now);
    }
    if (result <= 0) return;
    (IsRead(request) ? stats_.bytes_read : stats_.bytes_written) += result;
  }
  // The device was never asked.
  void OnWithdrawn(const IoRequest& request, absl::Time now) {
    Change(request.direction, -1, now);
    stats_.in_flight_bytes -= request.size_bytes;
    --(IsRead(request) ? stats_.requests_read : stats_.requests_written);
  }
  // The request is late: it is in flight still, and waited for no longer.
  void OnQuarantine(const IoRequest& request, absl::Time now) {
    Change(request.direction, -1, now);
    stats_.quarantined_bytes += request.size_bytes;
  }
  void OnRetry() { ++stats_.retries; }
  void OnContinuation() { ++stats_.continuations; }

  int64_t in_flight_bytes() const { return stats_.in_flight_bytes; }
  // All but the limit.
  IoPathStats stats(absl::Time now) const {
    IoPathStats stats = stats_;
    stats.read_busy = busy_[0].Until(now);
    stats.write_busy = busy_[1].Until(now);
    return stats;
  }

 private:
  struct Busy {
    int pieces = 0;  // in flight, not quarantined
    absl::Time since;
    absl::Duration before;

    absl::Duration Until(absl::Time now) const {
      return pieces == 0 ? before : before + (now - since);
    }
  };

  static bool IsRead(const IoRequest& request) {
    return request.direction == IoDirection::kRead;
  }
  void Change(IoDirection direction, int pieces, absl::Time now) {
    Busy& busy = busy_[static_cast<int>(direction)];
    if (busy.pieces == 0) busy.since = now;
    busy.pieces += pieces;
    if (busy.pieces == 0) busy.before += now - busy.since;
  }

  Busy busy_[2];  // reads, writes
  IoPathStats stats_;
};

}  // namespace terrace
