#include "daemon/links/path_lock.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/system/file_lock.h"

namespace terrace {
namespace {

// Of a daemon that is just going.
constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

absl::StatusOr<PathLock> PathLock::Take(const std::string& path) {
  OwnDescriptor directory =
      OwnDescriptor::Open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!directory.ok() || LockWithin(directory.get(), kPatience) ||
      LockOnceEnded(directory.get()) || errno != EWOULDBLOCK) {
    return PathLock(std::move(directory));
  }
  const pid_t holder = LockHolder(directory.get());
  return absl::UnavailableError(
      absl::StrCat("path '", path, "': another daemon has it for its jobs",
                   holder > 0 ? absl::StrCat(", process ", holder) : ""));
}

}  // namespace terrace
