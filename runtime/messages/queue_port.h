// The customer's end of one queue: what is ready, and how far the mover has
// come.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "terrace/pin.h"
#include "terrace/request.h"

namespace terrace {

// Written by the mover, read by the customer's thread.
class QueuePort {
 public:
  // Mover: hands over what became ready and says whether only the queue's own
  // pins block its head, as of the inbox's message number `processed`;
  // `blocked_also`: of a failed write-back whose slot would have done.
  void Publish(std::vector<Ready>* ready, bool blocked_by_own_pins,
               uint64_t processed,
               const absl::Status& blocked_also = absl::OkStatus());
  // No more is taken, as the customer closed the queue or the mover the
  // runtime: ends the pins that were never taken, now and from now on.
  void Close();
  bool closed() const;

  // Customer: the next ready group; see RequestQueue::Next. `posted` is the
  // inbox's message number at the call.
  absl::StatusOr<Ready> Take(Clock& clock, uint64_t posted,
                             absl::Time deadline);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mutex_);
  bool blocked_by_own_pins_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status blocked_also_ ABSL_GUARDED_BY(mutex_);
  uint64_t processed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Ends pins that no customer took: nothing was written in them.
template <typename ReadyList>
void EndUntaken(ReadyList& untaken) {
  for (Ready& ready : untaken) {
    if (!ready.pins.ok()) continue;
    for (Pin& pin : *ready.pins) pin.ReleaseUnchanged();
  }
  untaken.clear();
}

}  // namespace terrace
