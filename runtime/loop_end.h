// The last word of a thread that turns a loop: whoever waits for it may then
// join the thread, or leave it behind. Thread-safe.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

class LoopEnd {
 public:
  void Set() {
    MutexLock lock(mutex_);
    is_set_ = true;
    changed_.SignalAll();
  }
  void Await(Clock& clock) {
    MutexLock lock(mutex_);
    clock.Await(
        mutex_, changed_,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_set_; },
        absl::InfiniteFuture());
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
