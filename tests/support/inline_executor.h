// An executor without threads: tasks wait until the test runs them, in the
// order given, or in a random order that depends only on a seed.
//
//   InlineExecutor executor(/*parallelism=*/2);
//   executor.Run([] { ... });
//   executor.RunAll();
//
// One thread at a time; no task may be left when it is destroyed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/executor.h"

namespace terrace {

class InlineExecutor final : public Executor {
 public:
  // First in, first out.
  explicit InlineExecutor(int parallelism = 1) : parallelism_(parallelism) {}
  // Each next task is drawn from those that wait.
  InlineExecutor(int parallelism, uint64_t seed)
      : parallelism_(parallelism), random_(seed) {}
  ~InlineExecutor() override { TERRACE_CHECK(tasks_.empty()); }

  void Run(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
  }
  int parallelism() const override { return parallelism_; }

  // Runs one task; false when there is none. A task may queue others.
  bool RunOne() {
    if (tasks_.empty()) return false;
    const size_t index = random_ ? (*random_)() % tasks_.size() : 0;
    std::function<void()> task = std::move(tasks_[index]);
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

 private:
  const int parallelism_;
  std::optional<std::mt19937_64> random_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace terrace
