#include "bench/step_compute.h"

#include <cstring>
#include <utility>

#include "bench/harness.h"
#include "kernels/checksum.h"
#include "kernels/optimizer_kernels.h"

namespace terrace::bench {
namespace {

void Update(float* p, const float* g, float* m, float* v, int64_t count) {
  AdamUpdate(MakeAdamScalars(AdamOptions{}, 10), 1.0f,
             {.parameter = p, .gradient = g, .m = m, .v = v, .count = count});
}

template <typename T>
std::unique_ptr<T> TakeOne(Mutex& mutex,
                           std::vector<std::unique_ptr<T>>& from) {
  MutexLock lock(mutex);
  std::unique_ptr<T> one = std::move(from.back());
  from.pop_back();
  return one;
}

}  // namespace

RepeatedUpdate::RepeatedUpdate(int tasks, int64_t elements) {
  const auto count = static_cast<size_t>(elements);
  for (int i = 0; i < tasks; ++i) {
    auto scratch = std::make_unique<Scratch>();
    scratch->p.assign(count, 1.0f);
    scratch->g.assign(count, 1e-3f);
    scratch->m.assign(count, 1e-3f);
    scratch->v.assign(count, 1e-6f);
    free_.push_back(std::move(scratch));
  }
}

void RepeatedUpdate::Run(int repeats) {
  if (repeats == 0) return;
  std::unique_ptr<Scratch> scratch = TakeOne(mutex_, free_);
  for (int i = 0; i < repeats; ++i) {
    Update(scratch->p.data(), scratch->g.data(), scratch->m.data(),
           scratch->v.data(), static_cast<int64_t>(scratch->p.size()));
  }
  MutexLock lock(mutex_);
  free_.push_back(std::move(scratch));
}

void RepeatingRuntime::RepeatingExecutor::Queue(std::function<void()> task,
                                                Lane lane) {
  // The repetition first: a task's end is what its customer waits for.
  inner.Run(
      [this, task = std::move(task)] {
        repeated.Run(repeats);
        task();
      },
      lane);
}

ResidentCompute::ResidentCompute(const OptimizerPlan& plan, Executor& executor,
                                 RepeatedUpdate& repeated)
    : chunks_(plan.chunks),
      elements_(plan.chunk_bytes / 8),
      executor_(executor),
      repeated_(repeated),
      device_(static_cast<size_t>(plan.chunks * plan.chunk_bytes)),
      parameters_(static_cast<size_t>(chunks_ * elements_), 1.0f),
      gradients_(static_cast<size_t>(chunks_ * elements_), 1e-3f) {
  for (int i = 0; i < executor.parallelism(); ++i) {
    free_.push_back(std::make_unique<std::vector<float>>(
        static_cast<size_t>(2 * elements_)));
  }
}

double ResidentCompute::Run(int repeats) {
  const double start = Seconds();
  {
    MutexLock lock(mutex_);
    left_ = chunks_;
  }
  for (int64_t i = 0; i < chunks_; ++i) {
    executor_.Run([this, i, repeats] {
      Chunk(i, repeats);
      MutexLock lock(mutex_);
      if (--left_ == 0) changed_.SignalAll();
    });
  }
  MutexLock lock(mutex_);
  while (left_ > 0) changed_.Wait(mutex_);
  return Seconds() - start;
}

void ResidentCompute::Chunk(int64_t index, int repeats) {
  std::unique_ptr<std::vector<float>> slot = TakeOne(mutex_, free_);
  const size_t bytes = slot->size() * sizeof(float);
  std::byte* home = device_.data() + static_cast<size_t>(index) * bytes;
  std::memcpy(slot->data(), home, bytes);
  uint64_t sum = Checksum(slot->data(), bytes);
  repeated_.Run(repeats);
  Update(parameters_.data() + index * elements_,
         gradients_.data() + index * elements_, slot->data(),
         slot->data() + elements_, elements_);
  sum += Checksum(slot->data(), bytes);
  std::memcpy(home, slot->data(), bytes);
  sum_.fetch_add(sum, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  free_.push_back(std::move(slot));
}

}  // namespace terrace::bench
