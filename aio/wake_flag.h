// Waiting of an engine whose transfers are done when it is polled: only a Wake
// or the deadline ends it.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

class WakeFlag {
 public:
  // Until a Wake, also one before, or `deadline`; at once where `has_work`.
  // One thread; takes the Wake.
  void Wait(bool has_work, Clock& clock, absl::Time deadline) {
    MutexLock lock(mutex_);
    if (!has_work) {
      clock.Await(
          mutex_, changed_,
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return woken_; },
          deadline);
    }
    woken_ = false;
  }
  // Thread-safe.
  void Wake() {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.Signal();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
