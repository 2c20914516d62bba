// The compute half of `terrace-bench step`: update passes that are repeated,
// in a real step through a Runtime, and alone over resident chunks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "base/threads/pool_threads.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"

namespace terrace::bench {

// Scratch chunks on which an update pass is repeated, one for each task that
// runs at a time. Thread-safe.
class RepeatedUpdate {
 public:
  // `elements` of each pass.
  RepeatedUpdate(int tasks, int64_t elements);

  // `repeats` passes over one scratch chunk.
  void Run(int repeats);

 private:
  struct Scratch {
    std::vector<float> p, g, m, v;
  };

  Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_ ABSL_GUARDED_BY(mutex_);
};

// Passes everything on to `inner`, but its executor makes every task repeat
// the update pass. Customers' kernels only: checksums use inner's own.
class RepeatingRuntime final : public Runtime {
 public:
  RepeatingRuntime(Runtime& inner, RepeatedUpdate& repeated)
      : inner_(inner),
        threads_(std::make_shared<RepeatingExecutor>(
            ExecutorOf(inner.thread_pool()), repeated)),
        pool_(MakeThreadPool(threads_)) {}

  void set_repeats(int repeats) { threads_->repeats = repeats; }

  absl::StatusOr<TensorId> Register(const TensorSpec& spec) override {
    return inner_.Register(spec);
  }
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs) override {
    return inner_.Register(specs);
  }
  absl::Status Unregister(TensorId tensor) override {
    return inner_.Unregister(tensor);
  }
  using Runtime::OpenQueue;
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline) override {
    return inner_.OpenQueue(slot_bytes, slots, deadline);
  }
  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                              Time deadline) override {
    return inner_.Acquire(tensor, access, deadline);
  }
  void Prefetch(absl::Span<const TensorId> tensors) override {
    inner_.Prefetch(tensors);
  }
  Stats GetStats() const override { return inner_.GetStats(); }
  absl::Status Close(Time deadline) override { return inner_.Close(deadline); }
  ThreadPool thread_pool() const override { return pool_; }

 private:
  struct RepeatingExecutor final : Executor {
    RepeatingExecutor(Executor& inner_executor, RepeatedUpdate& update)
        : inner(inner_executor), repeated(update) {}
    void Queue(std::function<void()> task, Lane lane) override;
    int parallelism() const override { return inner.parallelism(); }

    Executor& inner;
    RepeatedUpdate& repeated;
    std::atomic<int> repeats = 0;
  };

  Runtime& inner_;
  const std::shared_ptr<RepeatingExecutor> threads_;
  const ThreadPool pool_;
};

// One step's compute, seconds: every chunk of `plan` is copied in from memory,
// checksummed, updated 1 + repeats times, checksummed and copied out, by tasks
// on `executor`.
class ResidentCompute {
 public:
  ResidentCompute(const OptimizerPlan& plan, Executor& executor,
                  RepeatedUpdate& repeated);
  double Run(int repeats);

 private:
  void Chunk(int64_t index, int repeats);

  const int64_t chunks_;
  const int64_t elements_;  // of a chunk
  Executor& executor_;
  RepeatedUpdate& repeated_;
  std::vector<std::byte> device_;
  std::vector<float> parameters_, gradients_;
  Mutex mutex_;
  CondVar changed_;
  int64_t left_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<std::vector<float>>> free_
      ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> sum_ = 0;  // keeps the checksums alive
};

}  // namespace terrace::bench
