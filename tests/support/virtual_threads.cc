#include "tests/support/virtual_threads.h"

#include <utility>

#include "base/check.h"

namespace terrace {

VirtualThreads::VirtualThreads(int count, absl::Duration cost,
                               VirtualClock& clock)
    : clock_(clock),
      cost_(cost),
      lanes_(count),
      turns_(static_cast<size_t>(count) + 1) {
  for (int i = count; i-- > 0;) idle_.push_back(i);
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this, i] { Work(i); });
  }
}

VirtualThreads::~VirtualThreads() {
  TERRACE_CHECK(tasks_ == 0);
  ending_ = true;
  for (int i = 0; i < parallelism(); ++i) Resume(i);
  for (std::thread& thread : threads_) thread.join();
}

void VirtualThreads::SleepUntil(absl::Time time) {
  const int self = running();
  TERRACE_CHECK(self != kClock);
  if (time <= clock_.Now()) return;
  clock_.AddEvent(time, [this, self] { Resume(self); });
  Pause(self);
}

void VirtualThreads::Queue(std::function<void()> task, Lane lane) {
  lanes_.Add(std::move(task), lane);
  ++tasks_;
  if (idle_.empty()) return;
  const int thread = idle_.back();
  idle_.pop_back();
  clock_.AddEvent(clock_.Now(), [this, thread] { Resume(thread); });
}

void VirtualThreads::Work(int self) {
  {
    MutexLock lock(mutex_);
    while (running_ != self) turn_of(self).Wait(mutex_);
  }
  while (!ending_) {
    RunTasks();
    idle_.push_back(self);
    Pause(self);
  }
  MutexLock lock(mutex_);
  running_ = kClock;
  turn_of(kClock).Signal();
}

void VirtualThreads::RunTasks() {
  while (!lanes_.empty()) {
    const Lane lane = lanes_.Next();
    const std::function<void()> task = lanes_.Begin(lane);
    SleepUntil(clock_.Now() + cost_);
    task();
    lanes_.End(lane);
    --tasks_;
  }
}

void VirtualThreads::Resume(int thread) {
  MutexLock lock(mutex_);
  Pass(kClock, thread);
}

void VirtualThreads::Pause(int self) {
  MutexLock lock(mutex_);
  Pass(self, kClock);
}

// Returns when it is the turn of `from` again.
void VirtualThreads::Pass(int from, int to) {
  TERRACE_CHECK(running_ == from);
  running_ = to;
  turn_of(to).Signal();
  while (running_ != from) turn_of(from).Wait(mutex_);
}

}  // namespace terrace
