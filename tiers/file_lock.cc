#include "tiers/file_lock.h"

#include <sys/file.h>

#include <cerrno>
#include <ctime>

namespace terrace {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(10);

}  // namespace

bool TryLock(int fd) {
  int result = 0;
  do {
    result = flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool LockWithin(int fd, absl::Duration patience) {
  for (absl::Duration waited; !TryLock(fd); waited += kPause) {
    if (errno != EWOULDBLOCK || waited >= patience) return false;
    const timespec pause = absl::ToTimespec(kPause);
    nanosleep(&pause, nullptr);
    errno = EWOULDBLOCK;
  }
  return true;
}

}  // namespace terrace
