#include "libtorch/hook/window/window_room.h"

#include <algorithm>

namespace terrace {

void WindowRoom::NotePeak(absl::FunctionRef<int64_t()> pinned_bytes) {
  const int64_t used = used_bytes();
  const int64_t most = window_bytes();
  int64_t in_use = used;
  int64_t beside = 0;
  if (used > most) {
    uint64_t turn = 0;
    do {  // until both numbers are of one moment
      turn = this->turn();
      in_use = pinned_bytes();
      beside = held_beside();
    } while (this->turn() != turn);
  }
  MutexLock lock(mutex_);
  peaks_.used_bytes =
      std::max(peaks_.used_bytes, std::min(used, std::max(most, in_use)));
  peaks_.over_budget_bytes =
      std::max(peaks_.over_budget_bytes, in_use - beside - most);
}

void WindowRoom::NoteBeyond(int64_t bytes, absl::string_view operation) {
  MutexLock lock(mutex_);
  if (bytes <= most_beyond_) return;
  most_beyond_ = bytes;
  peaks_.over_budget_operation = std::string(operation);
}

WindowPeaks WindowRoom::peaks() const {
  MutexLock lock(mutex_);
  return peaks_;
}

}  // namespace terrace
