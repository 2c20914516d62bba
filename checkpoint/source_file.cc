#include "checkpoint/source_file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr size_t kMostOpen = 256;

}  // namespace

size_t SourceFile::MostOpen() {
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostOpen;
  return std::clamp<size_t>(limit.rlim_cur / 4, 1, kMostOpen);
}

absl::StatusOr<SourceFile> SourceFile::Open(const File& directory,
                                            const std::string& name,
                                            bool stays_open) {
  TERRACE_ASSIGN_OR_RETURN(File file, File::OpenToRead(directory, name));
  SourceFile source(&directory, name, std::move(file));
  TERRACE_RETURN_IF_ERROR(source.Look());
  if (!stays_open) source.open_.reset();
  return source;
}

absl::StatusOr<SourceFile> SourceFile::Open(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(File file, File::OpenToRead(path));
  SourceFile source(nullptr, path, std::move(file));
  TERRACE_RETURN_IF_ERROR(source.Look());
  return source;
}

absl::Status SourceFile::Look() {
  struct stat found {};
  if (fstat(open_->fd(), &found) != 0) {
    return ErrnoError(path_, "cannot be looked at", errno);
  }
  size_bytes_ = found.st_size;
  device_ = found.st_dev;
  inode_ = found.st_ino;
  return absl::OkStatus();
}

absl::StatusOr<File> SourceFile::OpenAgain() const {
  auto file = File::OpenToRead(*directory_, name_);
  struct stat found {};
  const bool is_same = file.ok() && fstat(file->fd(), &found) == 0 &&
                       found.st_dev == device_ && found.st_ino == inode_;
  if (is_same || (!file.ok() && !absl::IsNotFound(file.status()))) return file;
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          path_, ": was replaced after it was opened; open it again")),
      {.error = ESTALE, .path = path_});
}

absl::Status SourceFile::Read(int64_t offset,
                              absl::Span<std::byte> bytes) const {
  if (open_) return open_->Read(offset, bytes);
  TERRACE_ASSIGN_OR_RETURN(const File file, OpenAgain());
  return file.Read(offset, bytes);
}

void SourceFile::DropCache(int64_t offset, int64_t size_bytes) const {
  if (open_) return open_->DropCache(offset, size_bytes);
  const auto file = OpenAgain();
  if (file.ok()) file->DropCache(offset, size_bytes);
}

}  // namespace terrace
