// Where computation runs: kernels, checksums, codecs, and copies between tiers
// of memory. The caller hands over a task and goes on; the task itself tells
// its waiter that it is done. Production has a pool of threads
// (kernels/pool_executor.h), tests run tasks when and in which order they like.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/check.h"

namespace terrace {

// What a task is for: arithmetic, or a piece of a transfer, short, that more
// computation may wait for. A hint; an executor may serve both alike.
enum class Lane : uint8_t { kCompute = 0, kMotion = 1 };
inline constexpr int kLanes = 2;

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `task` once, later, on any thread. Thread-safe; never blocks on other
  // tasks and never runs the task inside the call. Tasks must not wait for
  // other tasks and must not throw.
  void Run(std::function<void()> task, Lane lane = Lane::kCompute) {
    TERRACE_CHECK(task != nullptr);
    Queue(std::move(task), lane);
  }

  // How many tasks can run at the same time, >= 1.
  virtual int parallelism() const = 0;

 private:
  virtual void Queue(std::function<void()> task, Lane lane) = 0;
};

}  // namespace terrace
