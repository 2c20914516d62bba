#include "libtorch/hook/window/room_news.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "absl/time/clock.h"

namespace terrace {

// A wait of std::atomic's has no deadline, and its notify wakes only such
// waits.
void RoomNews::Listener::Wait(absl::Time deadline) {
  while (count_.load() == heard_) {
    // The kernel takes no time without an end.
    const absl::Duration left =
        std::min(deadline - absl::Now(), absl::Hours(1));
    if (left <= absl::ZeroDuration()) return;
    const timespec time = absl::ToTimespec(left);
    syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, heard_, &time, nullptr, 0);
  }
  heard_ = count_.load();
}

void RoomNews::TellListeners() {
  count_.fetch_add(1);
  syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace terrace
