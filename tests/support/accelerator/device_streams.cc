#include "tests/support/accelerator/device_streams.h"

#include <exception>
#include <utility>

namespace terrace {

AcceleratorStream DeviceStreams::Add(std::string name) {
  const std::lock_guard lock(mutex_);
  order_.Add(std::move(name));
  return queues_.Add();
}

void DeviceStreams::Submit(AcceleratorStream stream, const std::string& by,
                           const std::vector<Touch>& touches,
                           TaskQueues::Task task) {
  Enter(by);
  const std::lock_guard lock(mutex_);
  const int64_t number =
      queues_.Submit(stream, [this, by, task = std::move(task)] {
        try {
          task();
        } catch (const std::exception& error) {
          const std::lock_guard error_lock(error_mutex_);
          if (error_.empty()) error_ = by + ": " + error.what();
        }
      });
  order_.NoteTask(stream, number);
  for (const Touch& touch : touches) order_.NoteUse(stream, touch, by);
}

StreamMark DeviceStreams::Record(AcceleratorStream stream) {
  Enter("an event's record");
  return RecordUnseen(stream);
}

StreamMark DeviceStreams::RecordUnseen(AcceleratorStream stream) const {
  const std::lock_guard lock(mutex_);
  return {queues_.Last(stream), order_.Record(stream)};
}

void DeviceStreams::Await(AcceleratorStream stream, const StreamMark& mark) {
  Enter("a stream's wait");
  const std::lock_guard lock(mutex_);
  if (mark.task.stream != stream) {
    order_.NoteTask(stream, queues_.SubmitWait(stream, mark.task));
  }
  order_.NoteWait(stream, mark.done);
}

bool DeviceStreams::IsOver(const StreamMark& mark) {
  Enter("a question");
  if (!queues_.IsOver(mark.task)) return false;
  const std::lock_guard lock(mutex_);
  order_.NoteCpuWait(mark.done);
  return true;
}

void DeviceStreams::Wait(const StreamMark& mark) {
  Enter("a wait");
  queues_.Wait(mark.task);
  {
    const std::lock_guard lock(mutex_);
    order_.NoteCpuWait(mark.done);
  }
  ThrowError();
}

void DeviceStreams::NoteAllocation(AddressRange bytes, AcceleratorStream home) {
  const std::lock_guard lock(mutex_);
  order_.NoteAllocation(bytes, home);
}

void DeviceStreams::NoteSettled(AddressRange bytes, const VectorClock& done) {
  const std::lock_guard lock(mutex_);
  order_.Settle(bytes, done);
}

bool DeviceStreams::NoteCpuUse(const Touch& touch, const std::string& by) {
  const std::lock_guard lock(mutex_);
  return order_.NoteCpuUse(touch, by);
}

bool DeviceStreams::IsFreeForCpu(const Touch& touch) {
  const std::lock_guard lock(mutex_);
  return order_.IsFreeForCpu(touch);
}

void DeviceStreams::ReportFault(AddressRange bytes, bool is_read,
                                AcceleratorStream stream) {
  const std::lock_guard lock(mutex_);
  order_.ReportFault(bytes, is_read, stream);
}

std::vector<std::string> DeviceStreams::reports() const {
  const std::lock_guard lock(mutex_);
  return order_.reports();
}

int64_t DeviceStreams::report_count() const {
  const std::lock_guard lock(mutex_);
  return order_.report_count();
}

void DeviceStreams::ClearReports() {
  const std::lock_guard lock(mutex_);
  order_.ClearReports();
}

void DeviceStreams::LockForFork() {
  mutex_.lock();
  queues_.LockForFork();
  error_mutex_.lock();
}

void DeviceStreams::UnlockAfterFork(bool is_child) {
  error_mutex_.unlock();
  queues_.UnlockAfterFork();
  mutex_.unlock();
  if (!is_child) return;
  is_dead_ = true;
  queues_.LeaveToParent();
}

void DeviceStreams::FailCall(int64_t number) {
  calls_ = 0;
  failing_call_ = number;
}

void DeviceStreams::Enter(const std::string& what) {
  if (is_dead_) {
    throw TaskError(
        "the accelerator is of the process that this one was forked from");
  }
  const int64_t number = ++calls_;
  if (number == failing_call_) {
    throw TaskError("call " + std::to_string(number) + " of the device, " +
                    what + ", was made to fail");
  }
}

void DeviceStreams::ThrowError() {
  std::string error;
  {
    const std::lock_guard lock(error_mutex_);
    error = std::exchange(error_, {});
  }
  if (!error.empty()) throw TaskError("a task of a stream failed: " + error);
}

}  // namespace terrace
