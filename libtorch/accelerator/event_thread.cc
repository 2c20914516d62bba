#include "libtorch/accelerator/event_thread.h"

#include <deque>
#include <utility>

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

// A device that has not answered for so long does not answer.
constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

struct EventThread::State {
  struct Waiting {
    DeviceEvents events;
    Done done;
    absl::Status why_all;  // not OK: all of the device is waited for
  };

  std::shared_ptr<StreamedDevice> device;
  Mutex mutex;
  CondVar changed;
  std::deque<Waiting> waiting ABSL_GUARDED_BY(mutex);
  bool is_ending ABSL_GUARDED_BY(mutex) = false;
  bool has_ended ABSL_GUARDED_BY(mutex) = false;

  Ended Await(const Waiting& waiting) const;
  void Run();
};

EventThread::Ended EventThread::State::Await(const Waiting& next) const {
  Ended ended = {.error = next.why_all};
  if (!ended.error.ok()) ended.is_over = device->WaitForAll().ok();
  for (const std::shared_ptr<DeviceEvent>& event : next.events) {
    const absl::Status status = device->Wait(*event);
    if (status.ok()) continue;
    ended.error.Update(status);
    if (!device->Wait(*event).ok()) ended.is_over = false;
  }
  return ended;
}

void EventThread::State::Run() {
  mutex.Lock();
  while (true) {
    while (waiting.empty() && !is_ending) changed.Wait(mutex);
    if (waiting.empty()) break;
    Waiting next = std::move(waiting.front());
    waiting.pop_front();
    mutex.Unlock();
    next.done(Await(next));
    next = {};  // ends without the lock
    mutex.Lock();
  }
  has_ended = true;
  changed.SignalAll();
  mutex.Unlock();
}

EventThread::EventThread(std::shared_ptr<StreamedDevice> device)
    : state_(std::make_shared<State>()) {
  state_->device = std::move(device);
  thread_ = StartThread("terrace-events", [state = state_] { state->Run(); });
}

EventThread::~EventThread() {
  if (!process_.IsCurrent()) {
    // Some of what the forked child has of it may be locked for ever.
    thread_.detach();
    static_cast<void>(*new std::shared_ptr<State>(state_));
    return;
  }
  const absl::Time end = absl::Now() + kPatience;
  bool has_ended = false;
  {
    MutexLock lock(state_->mutex);
    state_->is_ending = true;
    state_->changed.SignalAll();
    for (absl::Time now = absl::Now(); !state_->has_ended && now < end;
         now = absl::Now()) {
      state_->changed.WaitFor(state_->mutex, end - now);
    }
    has_ended = state_->has_ended;
  }
  has_ended ? thread_.join() : thread_.detach();
}

void EventThread::After(DeviceEvents events, Done done) {
  if (!process_.IsCurrent()) return;
  MutexLock lock(state_->mutex);
  state_->waiting.push_back({std::move(events), std::move(done), {}});
  state_->changed.SignalAll();
}

void EventThread::AfterAll(const absl::Status& why, Done done) {
  if (!process_.IsCurrent()) return;
  MutexLock lock(state_->mutex);
  state_->waiting.push_back({{}, std::move(done), why});
  state_->changed.SignalAll();
}

}  // namespace terrace
