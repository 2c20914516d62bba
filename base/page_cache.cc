#include "base/page_cache.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

namespace terrace {

bool LeavesPages(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_DIRECT) != 0) return false;
  // A device's node lies on a tmpfs as well, and its pages on the device.
  struct stat node = {};
  if (fstat(fd, &node) != 0) return false;
  if (!S_ISREG(node.st_mode)) return S_ISBLK(node.st_mode);
  struct statfs system;
  return fstatfs(fd, &system) == 0 && system.f_type != TMPFS_MAGIC &&
         system.f_type != RAMFS_MAGIC;
}

void ReadOnlyWhatIsAsked(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); }

int DropWritten(int fd, int64_t offset, int64_t size_bytes) {
  int error = 0;
  do {
    error =
        sync_file_range(fd, offset, size_bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER) == 0
            ? 0
            : errno;
  } while (error == EINTR);
  if (LosesBytes(error)) return error;
  DropRead(fd, offset, size_bytes);
  return 0;
}

void DropRead(int fd, int64_t offset, int64_t size_bytes) {
  posix_fadvise(fd, offset, size_bytes, POSIX_FADV_DONTNEED);
}

bool LosesBytes(int error) {
  return error == EIO || error == ENOSPC || error == EDQUOT;
}

}  // namespace terrace
