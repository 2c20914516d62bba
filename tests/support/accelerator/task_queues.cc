#include "tests/support/accelerator/task_queues.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

// SplitMix64's mixing step.
uint64_t Mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

TaskQueues::TaskQueues(std::function<void(const Task&)> around)
    : around_(std::move(around)) {}

void TaskQueues::SetDelays(uint64_t seed, int64_t longest) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
  longest_ = longest;
  Tick();
}

AcceleratorStream TaskQueues::Add() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  return static_cast<AcceleratorStream>(streams_.size() - 1);
}

int64_t TaskQueues::DrawDelay() const {
  const uint64_t range = static_cast<uint64_t>(longest_) + 1;
  return static_cast<int64_t>(Mix(seed_ ^ static_cast<uint64_t>(given_)) %
                              range);
}

bool TaskQueues::MayBegin(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Queued& front = stream.queue.front();
  return front.due <= given_ || front.number <= stream.wanted;
}

void TaskQueues::Tick() {
  ++given_;
  for (const auto& stream : streams_) {
    if (MayBegin(*stream)) stream->can_begin.notify_one();
  }
}

int64_t TaskQueues::Submit(AcceleratorStream stream, Task task) {
  const std::lock_guard lock(mutex_);
  Stream& to = *streams_[static_cast<size_t>(stream)];
  const int64_t number = ++to.submitted;
  if (is_stopped_) return number;
  to.queue.push_back({number, given_ + 1 + DrawDelay(), std::move(task)});
  if (!to.thread.joinable()) {
    to.thread = std::thread([this, &to] { around_([&] { Run(to); }); });
  }
  Tick();
  return number;
}

int64_t TaskQueues::SubmitWait(AcceleratorStream stream, TaskMark mark) {
  return Submit(stream, [this, mark] { Wait(mark); });
}

void TaskQueues::Run(Stream& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    stream.can_begin.wait(lock,
                          [&] { return is_stopped_ || MayBegin(stream); });
    if (is_stopped_) return;
    Queued next = std::move(stream.queue.front());
    stream.queue.pop_front();
    lock.unlock();
    next.task();
    next.task = nullptr;
    lock.lock();
    stream.over = next.number;
    stream.is_over.notify_all();
  }
}

TaskMark TaskQueues::Last(AcceleratorStream stream) const {
  const std::lock_guard lock(mutex_);
  return {stream, streams_[static_cast<size_t>(stream)]->submitted};
}

bool TaskQueues::IsOver(TaskMark mark) {
  const std::lock_guard lock(mutex_);
  Tick();
  return is_stopped_ ||
         streams_[static_cast<size_t>(mark.stream)]->over >= mark.number;
}

void TaskQueues::Wait(TaskMark mark) {
  std::unique_lock lock(mutex_);
  Stream& stream = *streams_[static_cast<size_t>(mark.stream)];
  stream.wanted = std::max(stream.wanted, mark.number);
  stream.can_begin.notify_one();
  stream.is_over.wait(
      lock, [&] { return is_stopped_ || stream.over >= mark.number; });
}

void TaskQueues::Stop() {
  std::vector<std::deque<Queued>> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    for (const auto& stream : streams_) {
      dropped.push_back(std::move(stream->queue));
      stream->queue.clear();
      stream->can_begin.notify_all();
      stream->is_over.notify_all();
    }
  }
  for (const auto& stream : streams_) {
    if (stream->thread.joinable()) stream->thread.join();
  }
}

}  // namespace terrace
