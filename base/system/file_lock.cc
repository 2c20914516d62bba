#include "base/system/file_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(10);
// Of disks, to end what a process had begun that was killed.
constexpr absl::Duration kEndPatience = absl::Seconds(30);

// proc(5): a first thread that has ended is a zombie as long as others are
// there; one that has not yet has the signal pending.
bool IsEnding(pid_t process) {
  constexpr uint64_t kKilled = uint64_t{1} << (SIGKILL - 1);
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string word; status >> word;) {
    std::string value;
    if (word == "State:" && status >> value) {
      if (value == "Z" || value == "X") return true;
    } else if ((word == "SigPnd:" || word == "ShdPnd:") && status >> value) {
      uint64_t signals = 0;
      const bool is_killed =
          absl::SimpleHexAtoi(value, &signals) && (signals & kKilled) != 0;
      if (is_killed) return true;
    }
  }
  return false;
}

void Pause() {
  const timespec pause = absl::ToTimespec(kPause);
  nanosleep(&pause, nullptr);
}

// Where it is not had while `waits`, errno is EWOULDBLOCK.
bool LockWhile(absl::FunctionRef<bool()> waits, int fd,
               absl::Duration patience) {
  for (absl::Duration waited; !TryLock(fd); waited += kPause) {
    if (errno != EWOULDBLOCK) return false;
    if (waited >= patience || !waits()) {
      // Who had it may have gone since.
      return TryLock(fd);
    }
    Pause();
  }
  return true;
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
  return LockWhile([] { return true; }, fd, patience);
}

bool LockOnceEnded(int fd) {
  return LockWhile([fd] { return IsEnding(LockHolder(fd)); }, fd, kEndPatience);
}

pid_t LockHolder(int fd) {
  struct stat locked = {};
  if (fstat(fd, &locked) != 0) return 0;
  // proc(5): "1: FLOCK  ADVISORY  WRITE 4711 fe:00:5317631 0 EOF".
  const std::string place =
      absl::StrFormat("%02x:%02x:%u", major(locked.st_dev),
                      minor(locked.st_dev), locked.st_ino);
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    pid_t process = 0;
    const bool is_it = fields.size() > 5 && fields[1] == "FLOCK" &&
                       fields[5] == place &&
                       absl::SimpleAtoi(fields[4], &process);
    if (is_it) return process;
  }
  return 0;
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
