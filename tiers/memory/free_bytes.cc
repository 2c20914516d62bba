#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "terrace/machine.h"
#include "tiers/memory/process_memory.h"
#include "tiers/system_error.h"

namespace terrace {

absl::StatusOr<int64_t> FreeDiskBytes(const std::string& directory) {
  const OwnDescriptor opened = OwnDescriptor::Open(
      directory, O_RDONLY | O_DIRECTORY | O_PATH | O_CLOEXEC);
  if (!opened.ok()) {
    return ErrnoError(absl::StrCat("path '", directory, "'"),
                      "cannot open directory", errno, directory);
  }
  struct statvfs space;
  if (fstatvfs(opened.get(), &space) != 0) {
    return ErrnoError(absl::StrCat("path '", directory, "'"),
                      "cannot read the free space", errno, directory);
  }
  return static_cast<int64_t>(space.f_bavail * space.f_frsize);
}

int64_t AvailableMemoryBytes() {
  return AvailableMemoryBytesUnder("/proc", "/sys/fs/cgroup");
}

}  // namespace terrace
