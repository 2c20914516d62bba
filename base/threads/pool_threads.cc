#include "base/threads/pool_threads.h"

#include <utility>

#include "base/check.h"

namespace terrace {

PoolThreads::PoolThreads(std::shared_ptr<Executor> executor, int nearest_node)
    : executor_(std::move(executor)), nearest_node_(nearest_node) {
  TERRACE_CHECK(executor_ != nullptr);
}

PoolThreads::~PoolThreads() {
  if (!process_.IsCurrent()) {
    new std::shared_ptr<Executor>(std::move(executor_));
  }
}

ThreadPool MakeThreadPool(std::shared_ptr<Executor> executor,
                          int nearest_node) {
  return ThreadPool(
      std::make_shared<PoolThreads>(std::move(executor), nearest_node));
}

Executor& ExecutorOf(const ThreadPool& pool) {
  TERRACE_CHECK(pool.valid());
  return pool.threads()->executor();
}

}  // namespace terrace
