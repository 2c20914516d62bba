#include "bench/io/scratch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "bench/io/io_load.h"

namespace terrace::bench {
namespace {

absl::Status Write(int fd, int64_t size_bytes, absl::Span<std::byte> content) {
  constexpr int64_t kStep = 4 * kMiB;
  TERRACE_CHECK(content.size() % kStep == 0 && size_bytes % kStep == 0);
  for (int64_t at = 0; at < size_bytes; at += kStep) {
    const std::byte* const data =
        content.data() + at % static_cast<int64_t>(content.size());
    if (pwrite(fd, data, kStep, at) != kStep) {
      return absl::UnavailableError(
          absl::StrCat("first pass, offset ", at, ": ", DescribeErrno(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const char* NameOf(FileState state) {
  switch (state) {
    case FileState::kWritten:
      return "written before";
    case FileState::kAllocated:
      return "preallocated, fresh";
    case FileState::kSparse:
      return "sparse";
    case FileState::kEmpty:
      return "extending";
  }
  TERRACE_CHECK(false);
}

ScratchFile::~ScratchFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<ScratchFile>> ScratchFile::Create(
    const std::string& directory, int64_t size_bytes, FileState state,
    absl::Span<std::byte> content) {
  auto file = std::unique_ptr<ScratchFile>(new ScratchFile);
  std::string name = absl::StrCat(directory, "/terrace-bench-io-XXXXXX");
  const int made = mkstemp(name.data());
  if (made < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot make a file in ", directory, ": ", DescribeErrno(errno)));
  }
  file->fd_ = open(name.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
  file->is_direct_ = file->fd_ >= 0;
  if (file->is_direct_) {
    close(made);
  } else {
    file->fd_ = made;
  }
  unlink(name.c_str());
  file->size_bytes_ = size_bytes;
  int error = 0;
  if (state == FileState::kWritten || state == FileState::kAllocated) {
    error = posix_fallocate(file->fd_, 0, size_bytes);
  } else if (state == FileState::kSparse) {
    error = ftruncate(file->fd_, size_bytes) == 0 ? 0 : errno;
  }
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", size_bytes, " bytes in ", directory, ": ",
                     DescribeErrno(error)));
  }
  if (state == FileState::kWritten) {
    TERRACE_RETURN_IF_ERROR(Write(file->fd_, size_bytes, content));
  }
  return file;
}

}  // namespace terrace::bench
