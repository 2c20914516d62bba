#include "daemon/links/path_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/system/file_lock.h"

namespace terrace {
namespace {

// Of a daemon that is just going.
constexpr absl::Duration kPatience = absl::Seconds(2);

// proc(5): "1: FLOCK  ADVISORY  WRITE 4711 fe:00:5317631 0 EOF". 0: it is not
// told.
int64_t HolderOf(const struct stat& locked) {
  const std::string place =
      absl::StrFormat("%02x:%02x:%u", major(locked.st_dev),
                      minor(locked.st_dev), locked.st_ino);
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t process = 0;
    const bool is_it = fields.size() > 5 && fields[1] == "FLOCK" &&
                       fields[5] == place &&
                       absl::SimpleAtoi(fields[4], &process);
    if (is_it) return process;
  }
  return 0;
}

}  // namespace

absl::StatusOr<PathLock> PathLock::Take(const std::string& path) {
  OwnDescriptor directory =
      OwnDescriptor::Open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!directory.ok() || LockWithin(directory.get(), kPatience) ||
      errno != EWOULDBLOCK) {
    return PathLock(std::move(directory));
  }
  struct stat found = {};
  const int64_t holder =
      fstat(directory.get(), &found) == 0 ? HolderOf(found) : 0;
  return absl::UnavailableError(
      absl::StrCat("path '", path, "': another daemon has it for its jobs",
                   holder > 0 ? absl::StrCat(", process ", holder) : ""));
}

}  // namespace terrace
