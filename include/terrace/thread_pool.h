// Threads that kernels, checksums and copies run on: made once, and shared by
// whoever has a copy of the value. The last copy's end ends the threads.
//
//   auto threads = ThreadPool::Create(0);
//   Options options;
//   options.thread_pool = *threads;  // and of the next runtime's, too
//
// A value; thread-safe. A forked child has none of the threads: a copy goes
// there without an effect.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace terrace {

class PoolThreads;  // the library's own

class ThreadPool {
 public:
  // 0: one for each processor that this process may use, which it stays on.
  // Fewer are left to the kernel. InvalidArgument: threads < 0;
  // ResourceExhausted: no more threads; Unavailable: the machine cannot be
  // read.
  static absl::StatusOr<ThreadPool> Create(int threads);

  // No threads at all, until another value is assigned.
  ThreadPool() = default;
  // For the library.
  explicit ThreadPool(std::shared_ptr<PoolThreads> threads)
      : threads_(std::move(threads)) {}

  bool valid() const { return threads_ != nullptr; }
  // How many there are; of a valid pool, as the next.
  int size() const;
  // The memory node that all its processors are nearest to; -1: none.
  int nearest_node() const;

  // For the library.
  const std::shared_ptr<PoolThreads>& threads() const { return threads_; }

 private:
  std::shared_ptr<PoolThreads> threads_;
};

}  // namespace terrace
