// UseOrder has the tensors of a window in the order of their use, and says
// which tensor is evicted for another, and which one is brought next.
//
// The tensor that is used farthest in the future is evicted, as far as the
// trace of the last step tells (use_trace.h). Tensors that the trace does not
// know leave before all others, the one that was used longest ago first.
//
// UseOrder is thread-safe. The word of each tensor that it hands out is the
// caller's, so that the tensor is not removed meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/window/use_trace.h"
#include "libtorch/hook/window/window_tensor.h"

namespace terrace {

class UseOrder {
 public:
  struct VictimRule {
    // The victim is used later than after so many uses of others.
    int64_t used_after = -1;
    bool may_be_ready = true;  // else only a resident tensor
  };
  struct Upcoming {
    WindowTensor* tensor = nullptr;  // null when there is none
    int64_t next_use = 0;
  };

  void Add(absl::Span<WindowTensor* const> tensors);
  void Remove(WindowTensor& tensor);
  size_t size() const;
  // Returns the bytes of the window that `tensor`, if it is not null, has
  // together with all tensors that are here and pinned.
  int64_t PinnedBytesWith(const WindowTensor* tensor) const;

  // Begins a step. From here on uses are traced, and a step is expected to
  // repeat the one before.
  void BeginStep();
  // Notes a use; the calling thread has the tensor pinned.
  void Note(WindowTensor& tensor) {
    // Threads may take the same time, which costs less than a shared counter.
    const uint64_t now = clock_.load(std::memory_order_relaxed) + 1;
    clock_.store(now, std::memory_order_relaxed);
    tensor.last_use_.store(now, std::memory_order_relaxed);
    if (tracing_.load(std::memory_order_relaxed)) Trace(tensor);
  }

  // Whether a step has been traced to its end.
  bool known() const;
  // Returns where this step is in the last one.
  size_t position() const;

  // Returns the tensor to evict, with its word in evicting, or null when none
  // may go.
  WindowTensor* TakeVictim(const VictimRule& rule);
  // Returns the first tensor that is cold, with its word in loading, among the
  // tensors that are used next and have so many bytes together.
  Upcoming TakeUpcoming(int64_t within_bytes);
  // Returns the tensors that failed, with their words in loading.
  std::vector<WindowTensor*> TakeFailed();

 private:
  void Trace(const WindowTensor& tensor);

  std::atomic<uint64_t> clock_ = 1;
  std::atomic<bool> tracing_ = false;
  mutable OrderedMutex mutex_{LockRank::kUseOrder};
  // WindowTensor::key() is the key of each tensor.
  absl::flat_hash_map<int64_t, WindowTensor*> tensors_ ABSL_GUARDED_BY(mutex_);
  UseTrace trace_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
