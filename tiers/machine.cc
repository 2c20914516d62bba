#include "terrace/machine.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tiers/memory/process_memory.h"
#include "tiers/system_error.h"

namespace terrace {

absl::StatusOr<int64_t> FreeDiskBytes(const std::string& directory) {
  const int fd =
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_PATH | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoError(absl::StrCat("path '", directory, "'"),
                      "cannot open directory", errno, directory);
  }
  struct statvfs space;
  const int result = fstatvfs(fd, &space);
  const int error = errno;
  close(fd);
  if (result != 0) {
    return ErrnoError(absl::StrCat("path '", directory, "'"),
                      "cannot read the free space", error, directory);
  }
  return static_cast<int64_t>(space.f_bavail * space.f_frsize);
}

int64_t AvailableMemoryBytes() {
  return AvailableMemoryBytesUnder("/proc", "/sys/fs/cgroup");
}

}  // namespace terrace
