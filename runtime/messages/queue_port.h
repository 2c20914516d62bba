// The customer's end of one queue: what is ready, and how far the mover has
// come.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "runtime/messages/answer_sinks.h"
#include "runtime/messages/answers.h"
#include "terrace/pin.h"

namespace terrace {

// Written by the mover, read by the customer's thread.
class QueuePort final : public QueueSink {
 public:
  // Grants that nobody takes end at `pins`.
  explicit QueuePort(std::shared_ptr<PinOwner> pins) : pins_(std::move(pins)) {}

  void Publish(std::vector<ReadyGroup>* ready, bool blocked_by_own_pins,
               uint64_t processed, const absl::Status& blocked_also) override;
  // No more is taken, as the customer closed the queue or the mover the
  // runtime: ends the pins that were never taken, now and from now on.
  void Close() override;
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

  // Customer: the next ready group; see RequestQueue::Next. `posted` is the
  // inbox's message number at the call.
  absl::StatusOr<ReadyGroup> Take(Clock& clock, uint64_t posted,
                                  absl::Time deadline);
  // Nothing is ready to be taken.
  bool IsEmpty() const {
    MutexLock lock(mutex_);
    return ready_.empty() && !woken_;
  }
  // Any thread; see RequestQueue::Wake.
  void Wake();

 private:
  const std::shared_ptr<PinOwner> pins_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<ReadyGroup> ready_ ABSL_GUARDED_BY(mutex_);
  bool blocked_by_own_pins_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status blocked_also_ ABSL_GUARDED_BY(mutex_);
  uint64_t processed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // until a Take has said so
  std::atomic<bool> closed_ = false;            // written with mutex_ held
};

}  // namespace terrace
