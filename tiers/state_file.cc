#include "tiers/state_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr char kStateName[] = "state";
constexpr int64_t kBlockBytes = 4096;  // what every transfer is aligned to

// Zeros, page-aligned as direct I/O wants them.
class ZeroBlock {
 public:
  explicit ZeroBlock(int64_t size_bytes)
      : size_bytes_(static_cast<size_t>(size_bytes)),
        data_(mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~ZeroBlock() {
    if (ok()) munmap(data_, size_bytes_);
  }
  ZeroBlock(const ZeroBlock&) = delete;
  ZeroBlock& operator=(const ZeroBlock&) = delete;

  bool ok() const { return data_ != MAP_FAILED; }
  const void* data() const { return data_; }

 private:
  const size_t size_bytes_;
  void* const data_;
};

// 0 or an errno. A write that makes no progress counts as a full disk.
int WriteZeros(int fd, int64_t offset, int64_t size_bytes,
               std::atomic<int64_t>* progress = nullptr) {
  constexpr int64_t kPieceBytes = 1 << 20;
  const ZeroBlock zeros(kPieceBytes);
  if (!zeros.ok()) return ENOMEM;
  const int64_t end = offset + size_bytes;
  while (offset < end) {
    const auto wanted =
        static_cast<size_t>(std::min(kPieceBytes, end - offset));
    const ssize_t written = pwrite(fd, zeros.data(), wanted, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    offset += written;
    if (progress != nullptr) *progress += written;
  }
  return 0;
}

// Adopts the alignment that the kernel names; false: it says that there is
// none, or one beyond ours, and `reason` why.
bool AskAlignment(int fd, StateFile* file, std::string* reason) {
  struct statfs system;
  if (fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) {
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

// Reopens for O_DIRECT and tries it, or says why not.
absl::Status TryDirect(int directory_fd, const std::string& name,
                       StateFile* file) {
  std::string reason;
  int direct = -1;
  if (AskAlignment(file->fd, file, &reason)) {
    direct = openat(directory_fd, kStateName,
                    O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    if (direct < 0) reason = absl::StrCat("open refused: ", ErrnoName(errno));
  }
  if (direct >= 0) {
    const int error = WriteZeros(direct, 0, kBlockBytes);
    if (error == 0) {
      close(file->fd);
      file->fd = direct;
      file->direct_io = true;
      return absl::OkStatus();
    }
    close(direct);
    if (error != EINVAL && error != EOPNOTSUPP) {
      return ErrnoError(name, "cannot write 4096 bytes at offset 0", error);
    }
    reason = absl::StrCat("write refused: ", ErrnoName(error));
  }
  file->alignment = kBlockBytes;
  file->direct_io_reason = absl::StrCat("buffered: ", reason);
  const int error = WriteZeros(file->fd, 0, kBlockBytes);
  if (error == 0) return absl::OkStatus();
  return ErrnoError(name, "cannot write 4096 bytes at offset 0", error);
}

}  // namespace

absl::StatusOr<StateFile> MakeStateFile(int directory_fd,
                                        const std::string& name) {
  StateFile file;
  // Without O_DIRECT first: a refused open with O_CREAT leaves a file behind.
  file.fd = openat(directory_fd, kStateName,
                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file.fd < 0) return ErrnoError(name, "cannot make the file", errno);
  absl::Status status = TryDirect(directory_fd, name, &file);
  if (status.ok() && ftruncate(file.fd, 0) != 0) {
    status = ErrnoError(name, "cannot be emptied", errno);
  }
  if (status.ok()) return file;
  close(file.fd);
  unlinkat(directory_fd, kStateName, 0);
  return status;
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
