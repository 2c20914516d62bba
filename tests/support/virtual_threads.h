// An executor whose threads live in virtual time: a task may sleep, and time
// passes for it alone, as for a thread that copies to a slow medium.
//
//   VirtualThreads threads(/*count=*/4, absl::Microseconds(10), clock);
//   threads.Run([&] { threads.SleepUntil(clock.Now() + time); });
//
// Of all threads one runs at a time: the clock's, or that of a task until it
// sleeps or ends. Which is next is decided by the clock's events alone, so a
// run repeats to the nanosecond. Lanes are served as the pool's.
//
// Run and SleepUntil are for tasks and, of both, Run for the clock's thread.
// The clock outlives it; no task may be left when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "kernels/cpu/lanes.h"
#include "tests/support/manual_clock.h"

namespace terrace {

class VirtualThreads final : public Executor {
 public:
  // Each task costs `cost` beside what it sleeps.
  VirtualThreads(int count, absl::Duration cost, VirtualClock& clock);
  ~VirtualThreads() override;

  int parallelism() const override { return static_cast<int>(threads_.size()); }
  size_t waiting() const { return tasks_; }  // tasks that have not ended

  // Of a task.
  void SleepUntil(absl::Time time);

 private:
  static constexpr int kClock = -1;

  void Queue(std::function<void()> task, Lane lane) override;
  void Work(int self);
  void RunTasks();
  void Resume(int thread);  // by the clock's; returns when that one is done
  void Pause(int self);
  void Pass(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CondVar& turn_of(int thread) {
    return turns_[static_cast<size_t>(thread + 1)];
  }
  int running() const {
    MutexLock lock(mutex_);
    return running_;
  }

  // Of the thread whose turn it is.
  VirtualClock& clock_;
  const absl::Duration cost_;
  Lanes lanes_;
  std::vector<int> idle_;
  size_t tasks_ = 0;
  bool ending_ = false;

  mutable Mutex mutex_;
  std::deque<CondVar> turns_;  // the clock's, then each thread's
  int running_ ABSL_GUARDED_BY(mutex_) = kClock;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
