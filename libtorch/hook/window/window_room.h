// A WindowRoom knows how much of the Runtime's memory a window's tensors have,
// in bytes, headers included, and how much they may have. It is only numbers:
// the Runtime says which tensor leaves for which. It is thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace terrace {

struct WindowPeaks {
  int64_t used_bytes = 0;
  int64_t over_budget_bytes = 0;      // that operations took beyond the window
  std::string over_budget_operation;  // that had most in ordinary memory
};

class WindowRoom {
 public:
  // Tensors may count on `most_bytes` of the Runtime's memory at a time, within
  // the window and beyond it.
  WindowRoom(int64_t window_bytes, int64_t most_bytes)
      : window_bytes_(window_bytes), most_bytes_(most_bytes) {}
  void Resize(int64_t window_bytes, int64_t most_bytes) {
    window_bytes_.store(window_bytes, std::memory_order_relaxed);
    most_bytes_.store(most_bytes, std::memory_order_relaxed);
  }

  int64_t window_bytes() const {
    return window_bytes_.load(std::memory_order_relaxed);
  }
  int64_t most_bytes() const {
    return most_bytes_.load(std::memory_order_relaxed);
  }
  int64_t used_bytes() const {
    return used_bytes_.load(std::memory_order_relaxed);
  }

  // Take and Give count bytes within the window, or beyond it.
  void Take(int64_t bytes) {
    used_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void Give(int64_t bytes) {
    used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  // Threads that are not an operation's hold some of these bytes, each for the
  // time of a copy. They call TakeBeside before they pin the bytes, and
  // GiveBeside after the pin.
  void TakeBeside(int64_t bytes) {
    held_beside_.fetch_add(bytes);
    turn_.fetch_add(1);
  }
  void GiveBeside(int64_t bytes) {
    turn_.fetch_add(1);
    held_beside_.fetch_sub(bytes);
  }
  int64_t held_beside() const { return held_beside_.load(); }
  // Returns another number whenever the bytes held beside change.
  uint64_t turn() const { return turn_.load(); }

  // Notes a peak once the bytes that were taken are there. Where the window is
  // over, this asks for the `pinned_bytes` of its tensors: only what is pinned
  // is beyond the window, as the rest is about to leave; and what is held
  // beside operations is not beyond their budget.
  void NotePeak(absl::FunctionRef<int64_t()> pinned_bytes);
  // Notes that so many of these bytes are beside the Runtime's memory, for this
  // operation among others.
  void NoteBeyond(int64_t bytes, absl::string_view operation);

  WindowPeaks peaks() const;

 private:
  std::atomic<int64_t> window_bytes_;
  std::atomic<int64_t> most_bytes_;
  std::atomic<int64_t> used_bytes_ = 0;
  std::atomic<int64_t> held_beside_ = 0;
  std::atomic<uint64_t> turn_ = 0;
  mutable Mutex mutex_;
  WindowPeaks peaks_ ABSL_GUARDED_BY(mutex_);
  int64_t most_beyond_ ABSL_GUARDED_BY(mutex_) = 0;  // of NoteBeyond's
};

}  // namespace terrace
