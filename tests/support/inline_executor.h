// An executor without threads: tasks wait until the test runs them, in the
// order given, or in a random order that depends only on a seed. Both lanes are
// one to it.
//
//   InlineExecutor executor(/*parallelism=*/2);
//   executor.Run([] { ... });
//   executor.RunAll();
//
// One thread at a time; no task may be left when it is destroyed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/executor.h"

namespace terrace {

class InlineExecutor final : public Executor {
 public:
  // First in, first out.
  explicit InlineExecutor(int parallelism = 1) : parallelism_(parallelism) {}
  // Each next task is drawn from those that wait.
  InlineExecutor(int parallelism, uint64_t seed)
      : parallelism_(parallelism), random_(seed) {}
  ~InlineExecutor() override { TERRACE_CHECK(tasks_.empty()); }

  int parallelism() const override { return parallelism_; }

  // Runs one task; false when there is none. A task may queue others.
  bool RunOne() {
    if (tasks_.empty()) return false;
    const size_t index = random_ ? (*random_)() % tasks_.size() : 0;
    std::function<void()> task = std::move(tasks_[index].run);
    tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(index));
    task();
    return true;
  }

  // Runs tasks until none is left; returns how many ran.
  int RunAll() {
    int count = 0;
    while (RunOne()) ++count;
    return count;
  }

  size_t waiting() const { return tasks_.size(); }
  size_t waiting(Lane lane) const {
    return static_cast<size_t>(
        std::count_if(tasks_.begin(), tasks_.end(),
                      [lane](const Task& task) { return task.lane == lane; }));
  }

 private:
  struct Task {
    std::function<void()> run;
    Lane lane;
  };

  void Queue(std::function<void()> task, Lane lane) override {
    tasks_.push_back({std::move(task), lane});
  }

  const int parallelism_;
  std::optional<std::mt19937_64> random_;
  std::deque<Task> tasks_;
};

}  // namespace terrace
