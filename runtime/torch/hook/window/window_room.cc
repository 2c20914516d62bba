#include "runtime/torch/hook/window/window_room.h"

#include <algorithm>

namespace terrace {

void WindowRoom::NotePeak(int64_t operations_bytes) {
  const int64_t used = used_bytes();
  const int64_t over = operations_bytes - window_bytes();
  MutexLock lock(mutex_);
  peaks_.used_bytes = std::max(peaks_.used_bytes, used);
  peaks_.over_budget_bytes = std::max(peaks_.over_budget_bytes, over);
}

void WindowRoom::NoteBeyond(int64_t bytes, absl::string_view operation) {
  const int64_t over =
      bytes + std::max<int64_t>(0, used_bytes() - window_bytes());
  MutexLock lock(mutex_);
  if (over <= peaks_.over_budget_bytes) return;
  peaks_.over_budget_bytes = over;
  peaks_.over_budget_operation = std::string(operation);
}

WindowPeaks WindowRoom::peaks() const {
  MutexLock lock(mutex_);
  return peaks_;
}

}  // namespace terrace
