#include "runtime/checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// Readable by others as far as the user's mask allows: people share them.
constexpr mode_t kFileMode = 0666;

}  // namespace

absl::Status Damaged(const std::string& path, absl::string_view what,
                     int64_t offset) {
  return WithIoFault(absl::DataLossError(absl::StrCat(path, ": ", what)),
                     {.path = path, .offset = offset});
}

absl::StatusOr<File> File::Create(int directory_fd,
                                  const std::string& directory,
                                  const std::string& name) {
  std::string path = absl::StrCat(directory, "/", name);
  const int fd =
      openat(directory_fd, name.c_str(),
             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (fd < 0) return ErrnoError(path, "cannot be made", errno);
  return File(fd, std::move(path));
}

absl::StatusOr<File> File::OpenToRead(int directory_fd,
                                      const std::string& directory,
                                      const std::string& name) {
  return OpenRegular(directory_fd, name.c_str(),
                     absl::StrCat(directory, "/", name));
}

absl::StatusOr<File> File::OpenToRead(const std::string& path) {
  return OpenRegular(AT_FDCWD, path.c_str(), path);
}

absl::StatusOr<File> File::OpenRegular(int directory_fd, const char* name,
                                       std::string path) {
  File file(openat(directory_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK),
            std::move(path));
  const int error = file.fd_ < 0 ? errno : 0;
  struct stat found {};
  // A socket is not even opened.
  if (error == ENXIO ||
      (error == 0 && fstat(file.fd_, &found) == 0 && !S_ISREG(found.st_mode))) {
    return WithIoFault(absl::InvalidArgumentError(
                           absl::StrCat(file.path_, ": is no regular file")),
                       {.path = file.path_});
  }
  if (error != 0) return ErrnoError(file.path_, "cannot be opened", error);
  return file;
}

absl::StatusOr<File> File::OpenDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoError(path, "cannot be opened", errno);
  return File(fd, path);
}

absl::StatusOr<File> File::OpenDirectory(const File& directory) {
  const int fd = openat(directory.fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoError(directory.path_, "cannot be opened", errno);
  return File(fd, directory.path_);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::Status File::Reserve(int64_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  int error = 0;
  do {
    error = fallocate(fd_, 0, 0, size_bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // A file system that cannot says ENOSPC when it is written to.
  if (error == 0 || error == EOPNOTSUPP) return absl::OkStatus();
  return ErrnoError(path_, absl::StrCat("no room for ", size_bytes, " bytes"),
                    error);
}

absl::Status File::AtOffset(const char* verb, int64_t offset, size_t bytes,
                            int error) const {
  const absl::Status status = ErrnoError(
      path_,
      absl::StrCat("cannot ", verb, " ", bytes, " bytes at offset ", offset),
      error);
  return WithIoFault(status, {.offset = offset});
}

absl::Status File::Write(int64_t offset, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return AtOffset("write", offset, bytes.size(),
                      written < 0 ? errno : ENOSPC);
    }
    offset += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status File::Read(int64_t offset, absl::Span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return AtOffset("read", offset, bytes.size(), errno);
    }
    if (got == 0) {
      return Damaged(path_,
                     absl::StrCat("ends at offset ", offset, ", ", bytes.size(),
                                  " bytes before the end of what was written"),
                     offset);
    }
    offset += got;
    bytes.remove_prefix(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> File::SizeBytes() const {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) {
    return ErrnoError(path_, "has no size to be known", errno);
  }
  return static_cast<int64_t>(status.st_size);
}

absl::Status File::Flush() const {
  int error = 0;
  do {
    error = fsync(fd_) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return absl::OkStatus();
  return ErrnoError(path_, "cannot be flushed to its device", error);
}

void File::DropCache(int64_t offset, int64_t size_bytes) const {
  static_cast<void>(
      posix_fadvise(fd_, offset, size_bytes, POSIX_FADV_DONTNEED));
}

}  // namespace terrace
