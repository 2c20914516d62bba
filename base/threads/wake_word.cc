#include "base/threads/wake_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint32_t>::is_always_lock_free);

void WakeWord::Await(uint32_t seen) {
  ++sleepers_;
  syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  --sleepers_;
}

void WakeWord::Wake(int most) {
  ++word_;
  if (sleepers_ == 0) return;
  syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}

}  // namespace terrace
