// One answer to one request, awaited by the thread that asked.
#pragma once

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

// Shared, because the asker may be gone (a deadline) when the mover answers.
template <typename T>
class Reply {
 public:
  void Set(T value) {
    MutexLock lock(mutex_);
    if (!value_.has_value()) value_.emplace(std::move(value));
    changed_.SignalAll();
  }
  // Ends when the mover answers: it answers every message, at the latest
  // when it closes.
  T Await(Clock& clock) {
    MutexLock lock(mutex_);
    clock.Await(
        mutex_, changed_, [this] { return value_.has_value(); },
        absl::InfiniteFuture());
    return std::move(*value_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_;
};

}  // namespace terrace
