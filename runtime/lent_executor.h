// A pool's executor as one of its users has it: it counts the user's tasks, so
// that the user can go before the pool does, which others share. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/executor.h"
#include "base/mutex.h"
#include "base/threads/pool_threads.h"

namespace terrace {

class LentExecutor final : public Executor {
 public:
  explicit LentExecutor(ThreadPool pool)
      : pool_(std::move(pool)), executor_(ExecutorOf(pool_)) {}
  // All its tasks have ended. A pool that nobody else has ends here, and runs
  // what is left itself.
  ~LentExecutor() override {
    if (pool_.threads().use_count() == 1) {
      pool_ = ThreadPool();
    }
    MutexLock lock(mutex_);
    while (tasks_ > 0) ended_.Wait(mutex_);
  }
  LentExecutor(const LentExecutor&) = delete;
  LentExecutor& operator=(const LentExecutor&) = delete;

  const ThreadPool& pool() const { return pool_; }
  int parallelism() const override { return executor_.parallelism(); }

 private:
  void Queue(std::function<void()> task, Lane lane) override {
    {
      MutexLock lock(mutex_);
      ++tasks_;
    }
    executor_.Run(
        [this, task = std::move(task)]() mutable {
          task();
          task = nullptr;  // what it owns goes before its user does
          MutexLock lock(mutex_);
          if (--tasks_ == 0) ended_.SignalAll();
        },
        lane);
  }

  ThreadPool pool_;
  Executor& executor_;
  Mutex mutex_;
  CondVar ended_;
  int64_t tasks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
