#include "tiers/disk/state_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/page_cache.h"
#include "base/status_macros.h"
#include "tiers/disk/job_files.h"
#include "tiers/memory/page_buffer.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// 0 or an errno, of a block at the beginning.
int WriteBlock(int fd, const void* block) {
  ssize_t written = -1;
  do {
    written = pwrite(fd, block, kBlockBytes, 0);
  } while (written < 0 && errno == EINTR);
  if (written < 0) return errno;
  return written == kBlockBytes ? 0 : ENOSPC;
}

// 0 or an errno. A write that makes no progress counts as a full disk.
int WriteZeros(int fd, int64_t offset, int64_t size_bytes,
               std::atomic<int64_t>* progress = nullptr) {
  constexpr int64_t kPieceBytes = 1 << 20;
  const PageBuffer zeros(kPieceBytes);
  if (!zeros.ok()) return ENOMEM;
  const int64_t end = offset + size_bytes;
  const bool leaves_pages = LeavesPages(fd);
  while (offset < end) {
    const auto wanted =
        static_cast<size_t>(std::min(kPieceBytes, end - offset));
    const ssize_t written = pwrite(fd, zeros.data(), wanted, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    const int error = leaves_pages ? DropWritten(fd, offset, written) : 0;
    if (error != 0) return error;
    offset += written;
    if (progress != nullptr) *progress += written;
  }
  return 0;
}

// Adopts the alignment that the kernel names; false: it says that there is
// none, or one beyond ours, and `reason` why.
bool AskAlignment(int fd, StateFile* file, std::string* reason) {
  struct statfs system;
  struct stat node = {};
  if (fstat(fd, &node) == 0 && S_ISREG(node.st_mode) &&
      fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) {
    *reason = "tmpfs has no device below it";
    return false;
  }
  struct statx status = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 ||
      (status.stx_mask & STATX_DIOALIGN) == 0) {
    file->direct_io_reason = "alignment not named by the kernel, 4096 tried";
    return true;
  }
  const int64_t alignment =
      std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
  if (status.stx_dio_offset_align == 0 || alignment > kBlockBytes) {
    *reason = absl::StrCat("the file system wants an alignment of ", alignment,
                           " (0: none will do)");
    return false;
  }
  file->alignment = alignment;
  file->direct_io_reason = "alignment named by the kernel";
  return true;
}

}  // namespace

absl::StatusOr<StateFile> ChooseTransfers(int fd, const std::string& name,
                                          const void* block) {
  StateFile file;
  file.fd = fd;
  std::string reason;
  const int flags = fcntl(fd, F_GETFL);
  if (AskAlignment(fd, &file, &reason)) {
    int error = fcntl(fd, F_SETFL, flags | O_DIRECT) == 0 ? 0 : errno;
    if (error != 0) {
      reason = absl::StrCat("O_DIRECT refused: ", ErrnoName(error));
    } else {
      error = WriteBlock(fd, block);
      file.direct_io = error == 0;
      if (file.direct_io) return file;
      fcntl(fd, F_SETFL, flags);
      if (error != EINVAL && error != EOPNOTSUPP) {
        return ErrnoError(name, "cannot write 4096 bytes at offset 0", error);
      }
      reason = absl::StrCat("write refused: ", ErrnoName(error));
    }
  }
  file.alignment = kBlockBytes;
  file.direct_io_reason = absl::StrCat("buffered: ", reason);
  const int error = WriteBlock(fd, block);
  if (error == 0) return file;
  return ErrnoError(name, "cannot write 4096 bytes at offset 0", error);
}

absl::StatusOr<StateFile> MakeStateFile(int directory_fd,
                                        const std::string& name,
                                        OwnDescriptor& opened) {
  // Without O_DIRECT first: a refused open with O_CREAT leaves a file behind.
  opened = OwnDescriptor::OpenAt(
      directory_fd, kJobStateName,
      O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const int fd = opened.get();
  if (fd < 0) return ErrnoError(name, "cannot make the file", errno);
  const PageBuffer zeros(kBlockBytes);
  absl::StatusOr<StateFile> file =
      zeros.ok() ? ChooseTransfers(fd, name, zeros.data())
                 : ErrnoError(name, "no memory for a block", ENOMEM);
  if (file.ok() && ftruncate(fd, 0) != 0) {
    file = ErrnoError(name, "cannot be emptied", errno);
  }
  if (file.ok()) return file;
  opened.Close();
  unlinkat(directory_fd, kJobStateName, 0);
  return file;
}

absl::Status Preallocate(int fd, const std::string& name, int64_t offset,
                         int64_t size_bytes, std::atomic<int64_t>* progress) {
  int error = 0;
  do {
    error = fallocate(fd, 0, offset, size_bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // File systems without preallocation are filled by hand.
  if (error == EOPNOTSUPP) {
    error = WriteZeros(fd, offset, size_bytes, progress);
  }
  if (error == 0) return absl::OkStatus();
  // What it got before it failed goes back. If that fails too, the blocks
  // stay with the file until it is removed, and the next attempt has them.
  const int undone = ftruncate(fd, offset);
  return ErrnoError(
      name,
      absl::StrCat("cannot preallocate ", size_bytes, " bytes at offset ",
                   offset, undone == 0 ? "" : " nor undo the attempt"),
      error);
}

}  // namespace terrace
