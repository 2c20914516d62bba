// What a ThreadPool has: the executor that the library's kernels run on. The
// public value shows none of it.
#pragma once

#include <memory>

#include "base/executor.h"
#include "base/process.h"
#include "terrace/thread_pool.h"

namespace terrace {

class PoolThreads {
 public:
  // `nearest_node`: as ThreadPool has it.
  explicit PoolThreads(std::shared_ptr<Executor> executor,
                       int nearest_node = -1);
  // A forked child has no threads that could be joined: it leaves them.
  ~PoolThreads();
  PoolThreads(const PoolThreads&) = delete;
  PoolThreads& operator=(const PoolThreads&) = delete;

  Executor& executor() const { return *executor_; }
  int nearest_node() const { return nearest_node_; }

 private:
  const Process process_;
  std::shared_ptr<Executor> executor_;
  const int nearest_node_;
};

// A pool of any executor: of real threads, or of a test's.
ThreadPool MakeThreadPool(std::shared_ptr<Executor> executor,
                          int nearest_node = -1);

// Lives as long as a copy of the pool, which is valid.
Executor& ExecutorOf(const ThreadPool& pool);

}  // namespace terrace
