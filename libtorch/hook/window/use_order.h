// The tensors of a window in the order of their use: which one is evicted for
// another, and which one is brought next.
//
// Evicted is what is used farthest in the future, as far as the trace of the
// last step tells (use_trace.h); of what it does not tell anything of, what was
// used longest ago, and that first of all.
//
// Thread-safe. What it hands out has a word that is the caller's, so that it is
// not removed meanwhile.
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
    // Used later than after so many uses of others.
    int64_t used_after = -1;
    bool may_be_ready = true;  // else only what is resident
  };
  struct Upcoming {
    WindowTensor* tensor = nullptr;  // null: none
    int64_t next_use = 0;
  };

  void Add(absl::Span<WindowTensor* const> tensors);
  void Remove(WindowTensor& tensor);
  size_t size() const;
  // Of the window, that this one has and those that are here and pinned.
  int64_t PinnedBytesWith(const WindowTensor* tensor) const;
  // Whether one that is in the window is pinned by what does not wait.
  bool IsAnyComputing() const;

  // From here on uses are traced, and a step repeats the one before.
  void BeginStep();
  // By a thread that has it pinned.
  void Note(WindowTensor& tensor) {
    // Threads may take the same time: that costs less than a shared counter.
    const uint64_t now = clock_.load(std::memory_order_relaxed) + 1;
    clock_.store(now, std::memory_order_relaxed);
    tensor.last_use_.store(now, std::memory_order_relaxed);
    if (tracing_.load(std::memory_order_relaxed)) Trace(tensor);
  }

  // Whether a step has been traced to its end.
  bool known() const;
  // Of this step, in the last one.
  size_t position() const;

  // Its word in evicting; null: none may go.
  WindowTensor* TakeVictim(const VictimRule& rule);
  // The next one that is cold, its word in loading, of those that are used next
  // and have so many bytes together.
  Upcoming TakeUpcoming(int64_t within_bytes);
  // Those that failed, their words in loading.
  std::vector<WindowTensor*> TakeFailed();

 private:
  void Trace(const WindowTensor& tensor);

  std::atomic<uint64_t> clock_ = 1;
  std::atomic<bool> tracing_ = false;
  mutable OrderedMutex mutex_{LockRank::kUseOrder};
  // By their keys.
  absl::flat_hash_map<int64_t, WindowTensor*> tensors_ ABSL_GUARDED_BY(mutex_);
  UseTrace trace_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
