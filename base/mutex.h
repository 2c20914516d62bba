// A mutex and a condition that clang's thread-safety analysis understands and
// the thread sanitiser sees: Debian's Abseil is not instrumented, so a tsan
// build would report every absl::Mutex as a race. Plain wrappers of the
// standard library's; leaf locks only, never held across a virtual call.
//
//   Mutex mu;
//   int n ABSL_GUARDED_BY(mu);
//   MutexLock lock(mu);
//   while (n == 0) changed.Wait(mu);
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace terrace {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// What a thread sleeps in that waits for a condition elsewhere than in it.
class Sleep {
 public:
  virtual ~Sleep() = default;
  // Ends it, also one that has not begun. Thread-safe; it takes no lock.
  virtual void End() = 0;
};

class CondVar {
 public:
  void Signal() {
    condition_.notify_one();
    EndElsewhere();
  }
  void SignalAll() {
    condition_.notify_all();
    EndElsewhere();
  }
  // Each signal ends that sleep too, until null is set: one at a time, with the
  // mutex held, as whoever signals has it then.
  void SetElsewhere(Sleep* sleep) {
    elsewhere_.store(sleep, std::memory_order_relaxed);
  }
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // At most `timeout` long, by the monotonic clock. A wake-up may be
  // spurious: test again.
  void WaitFor(Mutex& mutex, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // A long wait is cut: the caller tests its condition again, and the sum
    // of now and the timeout cannot overflow.
    const absl::Duration cut = std::min(timeout, absl::Hours(1));
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, absl::ToChronoNanoseconds(cut));
    lock.release();
  }

 private:
  void EndElsewhere() {
    Sleep* const sleep = elsewhere_.load(std::memory_order_relaxed);
    if (sleep != nullptr) sleep->End();
  }

  std::condition_variable condition_;
  std::atomic<Sleep*> elsewhere_ = nullptr;
};

}  // namespace terrace
