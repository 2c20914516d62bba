#include "daemon/wire/ring/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace terrace {
namespace {

constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen,
               absl::Duration timeout) {
  const timespec longest =
      absl::ToTimespec(std::clamp(timeout, absl::ZeroDuration(), kLongestWait));
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &longest, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace terrace
