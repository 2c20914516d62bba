#include "runtime/background_thread.h"

#include <unistd.h>

#include <deque>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

// How long the destructor waits: an unlink on a healthy disk takes
// milliseconds.
constexpr absl::Duration kPatience = absl::Seconds(1);

// Shared with the thread, which may outlive the executor.
struct Line {
  Mutex mutex;
  CondVar changed;
  std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};

void Serve(Line& line) {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(line.mutex);
      while (line.tasks.empty() && !line.closed) line.changed.Wait(line.mutex);
      if (line.tasks.empty()) {
        line.ended = true;
        line.changed.SignalAll();
        return;
      }
      task = std::move(line.tasks.front());
      line.tasks.pop_front();
    }
    task();
  }
}

class BackgroundThread final : public Executor {
 public:
  BackgroundThread() : line_(std::make_shared<Line>()) {
    thread_ = StartThread("terrace-files", [line = line_] { Serve(*line); });
  }

  ~BackgroundThread() override {
    bool ended = false;
    {
      MutexLock lock(line_->mutex);
      line_->closed = true;
      line_->changed.SignalAll();
      ended = SystemClock().Await(
          line_->mutex, line_->changed,
          [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return line_->ended; },
          SystemClock().Now() + kPatience);
    }
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();  // in the kernel, for an unknown time
    }
  }

  int parallelism() const override { return 1; }

 private:
  // One line for both lanes.
  void Queue(std::function<void()> task, Lane /*lane*/) override {
    MutexLock lock(line_->mutex);
    line_->tasks.push_back(std::move(task));
    line_->changed.SignalAll();
  }

  const std::shared_ptr<Line> line_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Executor> MakeBackgroundThread() {
  return std::make_unique<BackgroundThread>();
}

}  // namespace terrace
