// An accelerator's streams: threads that run tasks (task_queues.h), and the
// check that their tasks are in order (stream_order.h). An event is a
// StreamMark. What a task throws comes out of the next wait of the CPU, as from
// a device.
//
// A call can be made to fail, as a device's do: those that give work, record,
// await or wait, and allocations, are counted.
//
// Thread-safe. In a forked child they are dead: TaskError says so from whatever
// gives or awaits work.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/accelerator/stream_order.h"
#include "tests/support/accelerator/task_queues.h"

namespace terrace {

struct StreamMark {
  TaskMark task;
  VectorClock done;
};

// A task or a call failed, or the streams are another process's.
class TaskError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class DeviceStreams {
 public:
  // `around` calls its argument, a stream's whole life, once.
  explicit DeviceStreams(std::function<void(const TaskQueues::Task&)> around =
                             [](const TaskQueues::Task& life) { life(); })
      : queues_(std::move(around)) {}

  // A task is begun when as many more have been given as its delay says, which
  // is drawn from none to `longest`.
  void SetDelays(uint64_t seed, int64_t longest) {
    queues_.SetDelays(seed, longest);
  }
  AcceleratorStream Add(std::string name);
  // `by` is told in reports.
  void Submit(AcceleratorStream stream, const std::string& by,
              const std::vector<Touch>& touches, TaskQueues::Task task);
  StreamMark Record(AcceleratorStream stream);
  // As the allocator does: it is no call of the program's.
  StreamMark RecordUnseen(AcceleratorStream stream) const;
  void Await(AcceleratorStream stream, const StreamMark& mark);
  // Yes: the CPU has waited for it.
  bool IsOver(const StreamMark& mark);
  void Wait(const StreamMark& mark);
  // In time alone: where a real device would not wait, and nothing is known to
  // be over by it. Throws nothing.
  void WaitUnseen(TaskMark mark) { queues_.Wait(mark); }
  bool IsOverUnseen(TaskMark mark) { return queues_.IsOver(mark); }

  // The call of that number from here on, from 1, throws TaskError; 0: none.
  void FailCall(int64_t number);
  int64_t calls() const { return calls_; }
  // A call begins, which `what` says: throws what it has to.
  void Enter(const std::string& what);

  // A block of the stream's memory, from here on.
  void NoteAllocation(AddressRange bytes, AcceleratorStream home);
  // The allocator has waited for that.
  void NoteSettled(AddressRange bytes, const VectorClock& done);

  // As the CPU uses memory that streams use; false: it has not waited for them,
  // which is reported.
  bool NoteCpuUse(const Touch& touch, const std::string& by);
  bool IsFreeForCpu(const Touch& touch);
  // It has used what tasks of the stream use: `is_read` by them alone.
  void ReportFault(AddressRange bytes, bool is_read, AcceleratorStream stream);

  std::vector<std::string> reports() const;  // the first hundred
  int64_t report_count() const;
  void ClearReports();

  // What has not begun never will. Idempotent, and nothing in a child.
  void Stop() { queues_.Stop(); }
  void LockForFork();
  void UnlockAfterFork(bool is_child);
  bool is_dead() const { return is_dead_; }

 private:
  void ThrowError();

  TaskQueues queues_;
  mutable std::mutex mutex_;
  StreamOrder order_;
  std::mutex error_mutex_;
  std::string error_;  // of the first task that failed since one was told
  std::atomic<bool> is_dead_ = false;
  std::atomic<int64_t> calls_ = 0;  // since a failure was asked for
  std::atomic<int64_t> failing_call_ = 0;
};

}  // namespace terrace
