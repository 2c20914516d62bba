#include "base/system/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <ctime>

namespace terrace {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(10);

void Pause() {
  const timespec pause = absl::ToTimespec(kPause);
  nanosleep(&pause, nullptr);
}

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
    Pause();
    errno = EWOULDBLOCK;
  }
  return true;
}

OwnDescriptor OpenWithin(const std::string& path, int flags,
                         absl::Duration patience) {
  OwnDescriptor opened = OwnDescriptor::Open(path, flags);
  for (absl::Duration waited;
       !opened.ok() && errno == EBUSY && waited < patience; waited += kPause) {
    Pause();
    opened = OwnDescriptor::Open(path, flags);
  }
  return opened;
}

}  // namespace terrace
