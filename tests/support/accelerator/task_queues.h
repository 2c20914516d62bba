// The streams of an accelerator, as threads: each runs its tasks in the order
// they were given, beside the others. A task is late: it is begun once as many
// tasks have been given after it, on any stream, as its delay says, or somebody
// has asked or waited for its end. Delays are drawn from a seed, so that
// nothing depends on time, and the longer they may be, the more of a program
// that does not wait is wrong.
//
// Thread-safe. Tasks run without a lock held. What waits ends with what it
// waits for: a task waits for tasks given before it alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/accelerator/vector_clock.h"

namespace terrace {

// A stream's task, by its number, and all that were given before it.
struct TaskMark {
  AcceleratorStream stream = 0;
  int64_t number = 0;  // 0: nothing
};

class TaskQueues {
 public:
  using Task = std::function<void()>;

  // `around` calls its argument, a thread's whole life, once.
  explicit TaskQueues(std::function<void(const Task&)> around);
  ~TaskQueues() { Stop(); }
  TaskQueues(const TaskQueues&) = delete;
  TaskQueues& operator=(const TaskQueues&) = delete;

  // In tasks, from none to `longest`.
  void SetDelays(uint64_t seed, int64_t longest);

  AcceleratorStream Add();
  // The task's number.
  int64_t Submit(AcceleratorStream stream, Task task);
  // What the stream is given from here on comes after the mark.
  int64_t SubmitWait(AcceleratorStream stream, TaskMark mark);
  // The last that the stream was given.
  TaskMark Last(AcceleratorStream stream) const;
  // Who asks again and again is answered yes in the end.
  bool IsOver(TaskMark mark);
  void Wait(TaskMark mark);

  // What has not begun never will, and no wait waits; threads end. Idempotent.
  void Stop();
  // In a forked child, which has no threads.
  void LeaveToParent() { is_stopped_ = true; }
  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }

 private:
  struct Queued {
    int64_t number = 0;
    int64_t due = 0;  // of `given_`
    Task task;
  };
  struct Stream {
    std::deque<Queued> queue;
    int64_t submitted = 0;
    int64_t over = 0;
    int64_t wanted = 0;  // somebody waits for this one
    std::condition_variable can_begin;
    std::condition_variable is_over;
    std::thread thread;
  };

  void Run(Stream& stream);
  bool MayBegin(const Stream& stream) const;
  void Tick();  // something was given, or asked
  int64_t DrawDelay() const;

  const std::function<void(const Task&)> around_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;
  uint64_t seed_ = 0;
  int64_t longest_ = 0;
  int64_t given_ = 0;
  bool is_stopped_ = false;
};

}  // namespace terrace
