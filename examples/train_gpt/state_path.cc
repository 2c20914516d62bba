#include "examples/train_gpt/state_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

// The library keeps the first and the last MiB of a device free.
constexpr int64_t kDeviceMargins = 2 << 20;

absl::Status Refused(const std::string& path, const char* what, int error) {
  const std::string message =
      absl::StrCat("path '", path, "' ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

absl::Status AddDeviceSize(StatePath* state) {
  const int fd = open(state->path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Refused(state->path, "cannot be opened", errno);
  const off_t end = lseek(fd, 0, SEEK_END);
  const int error = errno;
  close(fd);
  if (end < 0) return Refused(state->path, "does not tell its size", error);
  state->free_bytes = std::max<int64_t>(0, end - kDeviceMargins);
  return absl::OkStatus();
}

absl::Status AddFreeSpace(StatePath* state) {
  struct statvfs space;
  if (statvfs(state->path.c_str(), &space) != 0) {
    return Refused(state->path, "does not tell its free space", errno);
  }
  state->free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StatePath> InspectStatePath(const std::string& path) {
  StatePath result;
  result.path = path;
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return Refused(path, "cannot be used", errno);
  }
  const bool is_directory = S_ISDIR(info.st_mode);
  if (!is_directory && !S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path '", path, "' is neither a directory, a file nor a block device"));
  }
  if (access(path.c_str(), R_OK | W_OK | (is_directory ? X_OK : 0)) != 0) {
    return Refused(path, "cannot be read and written", errno);
  }
  if (S_ISBLK(info.st_mode)) {
    result.identity = {info.st_rdev, 0};
    absl::Status status = AddDeviceSize(&result);
    if (!status.ok()) return status;
    return result;
  }
  result.identity = {info.st_dev, info.st_ino};
  result.directory = path;
  if (!is_directory) {
    // Not the folder of a link to it.
    std::error_code error;
    const std::filesystem::path file = std::filesystem::canonical(path, error);
    if (error) return Refused(path, "cannot be followed", error.value());
    result.directory = file.parent_path().string();
    result.used_bytes = static_cast<int64_t>(info.st_blocks) * 512;
  }
  absl::Status status = AddFreeSpace(&result);
  if (!status.ok()) return status;
  return result;
}

std::string ScratchDirectory(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const absl::StatusOr<StatePath> state = InspectStatePath(path);
    if (state.ok() && !state->is_device() &&
        access(state->directory.c_str(), W_OK | X_OK) == 0) {
      return state->directory;
    }
  }
  return ".";
}

}  // namespace train_gpt
