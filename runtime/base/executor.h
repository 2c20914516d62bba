// Where computation runs: kernels, checksums, codecs. The caller hands over a
// task and goes on; the task itself tells its waiter that it is done.
// Production has a pool of threads (kernels/pool_executor.h), tests run tasks
// when and in which order they like.
#pragma once

#include <functional>

namespace terrace {

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` once, later, on any thread. Thread-safe; never blocks on other
  // tasks and never runs the task inside the call. Tasks must not wait for
  // other tasks and must not throw.
  virtual void Run(std::function<void()> task) = 0;

  // How many tasks can run at the same time, >= 1.
  virtual int parallelism() const = 0;
};

}  // namespace terrace
