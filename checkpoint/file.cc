#include "checkpoint/file.h"

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
constexpr int kToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

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
  OwnDescriptor made = OwnDescriptor::OpenAt(
      directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
      kFileMode);
  if (!made.ok()) return ErrnoError(path, "cannot be made", errno);
  return File(std::move(made), std::move(path));
}

absl::StatusOr<File> File::OpenToRead(const File& directory,
                                      const std::string& name) {
  if (directory.fd() < 0) return directory.Failed("cannot be read", EBADF);
  return OpenedRegular(OwnDescriptor::OpenAt(directory.fd(), name, kToRead),
                       absl::StrCat(directory.path(), "/", name));
}

absl::StatusOr<File> File::OpenToRead(const std::string& path) {
  return OpenedRegular(OwnDescriptor::Open(path, kToRead), path);
}

absl::StatusOr<File> File::OpenedRegular(OwnDescriptor own, std::string path) {
  struct stat found {};
  // A socket is not even opened.
  if (own.ok() ? fstat(own.get(), &found) == 0 && !S_ISREG(found.st_mode)
               : errno == ENXIO) {
    return WithIoFault(
        absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file")),
        {.path = path});
  }
  return Opened(std::move(own), std::move(path));
}

absl::StatusOr<File> File::OpenDirectory(const std::string& path) {
  return Opened(OwnDescriptor::Open(path, kDirectory), path);
}

absl::StatusOr<File> File::OpenDirectory(const File& directory) {
  if (directory.fd() < 0) return directory.Failed("cannot be opened", EBADF);
  return Opened(OwnDescriptor::OpenAt(directory.fd(), ".", kDirectory),
                directory.path());
}

absl::StatusOr<File> File::Opened(OwnDescriptor own, std::string path) {
  if (!own.ok()) return ErrnoError(path, "cannot be opened", errno);
  return File(std::move(own), std::move(path));
}

absl::Status File::Failed(const std::string& what, int error) const {
  const Process& process = own_.process();
  if (process.IsCurrent()) return ErrnoError(path_, what, error);
  return absl::CancelledError(absl::StrCat(path_, ": open in process ",
                                           process.id(),
                                           "; a forked child cannot use it"));
}

absl::Status File::Reserve(int64_t size_bytes) {
  if (size_bytes == 0) return absl::OkStatus();
  int error = 0;
  do {
    error = fallocate(fd(), 0, 0, size_bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // A file system that cannot says ENOSPC when it is written to.
  if (error == 0 || error == EOPNOTSUPP) return absl::OkStatus();
  return Failed(absl::StrCat("no room for ", size_bytes, " bytes"), error);
}

absl::Status File::AtOffset(const char* verb, int64_t offset, size_t bytes,
                            int error) const {
  const absl::Status status = Failed(
      absl::StrCat("cannot ", verb, " ", bytes, " bytes at offset ", offset),
      error);
  return WithIoFault(status, {.offset = offset});
}

absl::Status File::Write(int64_t offset, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd(), bytes.data(), bytes.size(), offset);
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
    const ssize_t got = pread(fd(), bytes.data(), bytes.size(), offset);
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
  if (fstat(fd(), &status) != 0) {
    return Failed("has no size to be known", errno);
  }
  return static_cast<int64_t>(status.st_size);
}

absl::Status File::Flush() const {
  int error = 0;
  do {
    error = fsync(fd()) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return absl::OkStatus();
  return Failed("cannot be flushed to its device", error);
}

void File::DropCache(int64_t offset, int64_t size_bytes) const {
  static_cast<void>(
      posix_fadvise(fd(), offset, size_bytes, POSIX_FADV_DONTNEED));
}

}  // namespace terrace
