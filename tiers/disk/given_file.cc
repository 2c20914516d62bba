#include "tiers/disk/given_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "base/text/shell_word.h"
#include "tiers/disk/given_mark.h"
#include "tiers/memory/page_buffer.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// udev locks a device that changed while it looks at it.
constexpr absl::Duration kLockPatience = absl::Milliseconds(500);
constexpr absl::Duration kClaimPatience = absl::Seconds(1);

// The offset of the first byte that is not zero; -1: all are.
absl::StatusOr<int64_t> FindNonZero(int fd, const std::string& path,
                                    int64_t offset, int64_t size_bytes) {
  const PageBuffer buffer(size_bytes);
  if (!buffer.ok()) return ErrnoError(path, "no memory to read it", ENOMEM);
  for (int64_t at = 0; at < size_bytes;) {
    const ssize_t n = pread(fd, buffer.data() + at,
                            static_cast<size_t>(size_bytes - at), offset + at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return ErrnoError(path,
                        absl::StrCat("cannot be read at offset ", offset + at),
                        n < 0 ? errno : EIO);
    }
    at += n;
  }
  const int64_t found =
      FirstNonZero({buffer.data(), static_cast<size_t>(size_bytes)});
  return found < 0 ? -1 : offset + found;
}

}  // namespace

GivenFile::GivenFile(const std::string& path) : path_(path) {}

GivenFile::~GivenFile() {
  if (!process_.IsCurrent()) return;
  if (is_marked_ && !was_marked_ && !is_kept_) Unmark();
  // Whatever else may have the open file: a child made by clone(2), say.
  if (lock_.ok()) flock(lock_.get(), LOCK_UN);
}

std::string GivenFile::Name() const {
  return absl::StrCat("path '", path_, "'");
}

absl::Status GivenFile::Failed(const std::string& what, int error) const {
  return ErrnoError(Name(), what, error, path_);
}

absl::StatusOr<std::unique_ptr<GivenFile>> GivenFile::Open(
    const std::string& path) {
  std::unique_ptr<GivenFile> given(new GivenFile(path));
  TERRACE_RETURN_IF_ERROR(given->OpenAndLock());
  TERRACE_RETURN_IF_ERROR(given->is_device_ ? given->CheckDevice()
                                            : given->CheckFile());
  TERRACE_RETURN_IF_ERROR(given->Mark());
  return given;
}

absl::Status GivenFile::OpenAndLock() {
  lock_ = OwnDescriptor::Open(path_, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (!lock_.ok()) {
    // Kernels may refuse to open what is mounted, even without O_EXCL.
    return errno == EBUSY ? InUse() : Failed("cannot be opened", errno);
  }
  struct stat node = {};
  if (fstat(lock_.get(), &node) != 0) {
    return Failed("cannot be looked at", errno);
  }
  is_device_ = S_ISBLK(node.st_mode);
  if (!is_device_ && !S_ISREG(node.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(), ": no directory, file or block device"));
  }
  fcntl(lock_.get(), F_SETFL, 0);  // no O_NONBLOCK
  if (!LockWithin(lock_.get(), kLockPatience)) {
    const int error = errno;
    return WithIoFault(absl::UnavailableError(absl::StrCat(
                           Name(), ": another job uses it, or has it locked: ",
                           ErrnoName(error))),
                       {error, path_});
  }
  return is_device_ ? ClaimDevice() : absl::OkStatus();
}

absl::Status GivenFile::ClaimDevice() {
  // A ring that is gone holds its files for some ten milliseconds more.
  claim_ = OpenWithin(path_, O_RDWR | O_EXCL | O_CLOEXEC, kClaimPatience);
  if (!claim_.ok()) {
    return errno == EBUSY ? InUse() : Failed("cannot be opened", errno);
  }
  struct stat locked = {};
  struct stat claimed = {};
  uint64_t size_bytes = 0;
  if (fstat(lock_.get(), &locked) != 0 || fstat(fd(), &claimed) != 0 ||
      ioctl(fd(), BLKGETSIZE64, &size_bytes) != 0) {
    return Failed("cannot be looked at", errno);
  }
  if (locked.st_rdev != claimed.st_rdev) {
    return absl::UnavailableError(
        absl::StrCat(Name(), ": became another device meanwhile"));
  }
  constexpr int64_t kLeast = 2 * kDeviceMarginBytes + kMarkBytes;
  const auto size = static_cast<int64_t>(size_bytes) / kMarkBytes * kMarkBytes;
  if (size < kLeast) {
    return WithIoFault(absl::ResourceExhaustedError(
                           absl::StrCat(Name(), ": a device of ", size_bytes,
                                        " bytes; the least ", "is ", kLeast)),
                       {ENOSPC, path_});
  }
  end_bytes_ = size - kDeviceMarginBytes;
  return absl::OkStatus();
}

absl::Status GivenFile::InUse() const {
  return WithIoFault(
      absl::FailedPreconditionError(absl::StrCat(
          Name(),
          ": the device is in use: it, or a part of it, is mounted, swap, "
          "or part of a RAID or a volume group (see `lsblk ",
          ShellWord(path_), "`)")),
      {EBUSY, path_});
}

absl::Status GivenFile::CheckDevice() {
  char mark[kMarkBytes];
  const ssize_t n = pread(fd(), mark, sizeof(mark), 0);
  if (n != kMarkBytes) {
    return Failed("cannot be read at offset 0", n < 0 ? errno : EIO);
  }
  was_marked_ = IsGivenMark(mark);
  const int64_t begin = was_marked_ ? kMarkBytes : 0;
  TERRACE_ASSIGN_OR_RETURN(
      int64_t found,
      FindNonZero(fd(), path_, begin, kDeviceMarginBytes - begin));
  if (found < 0) {
    TERRACE_ASSIGN_OR_RETURN(
        found, FindNonZero(fd(), path_, end_bytes_, kDeviceMarginBytes));
  }
  if (found < 0) return absl::OkStatus();
  const std::string device = ShellWord(path_);
  return absl::InvalidArgumentError(
      absl::StrCat(Name(), ": the device holds data of others, at offset ",
                   found, ". If nobody needs them: blkdiscard -f -z -l ",
                   kDeviceMarginBytes, " ", device, " && blkdiscard -f -z -o ",
                   end_bytes_, " -l ", kDeviceMarginBytes, " ", device));
}

absl::Status GivenFile::CheckFile() {
  end_bytes_ = kMarkBytes;
  struct stat node = {};
  if (fstat(fd(), &node) != 0) {
    return Failed("cannot be looked at", errno);
  }
  if (node.st_size == 0) return absl::OkStatus();
  char mark[kMarkBytes] = {};
  const ssize_t n = pread(fd(), mark, sizeof(mark), 0);
  if (n < 0) return Failed("cannot be read at offset 0", errno);
  if (n != kMarkBytes || !IsGivenMark(mark)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(), ": the file holds ", node.st_size,
                     " bytes of others. If nobody needs them: truncate -s 0 ",
                     ShellWord(path_)));
  }
  was_marked_ = true;
  unsafe_shutdowns_ = MarkedUnsafeShutdowns(mark);
  if (ftruncate(fd(), kMarkBytes) != 0) {
    return Failed("cannot be cut to its mark", errno);
  }
  return absl::OkStatus();
}

absl::Status GivenFile::Mark() {
  const PageBuffer block(kMarkBytes);
  if (!block.ok()) return Failed("no memory for a block", ENOMEM);
  WriteGivenMark(block.data());
  is_marked_ = true;  // in part, should it fail
  TERRACE_ASSIGN_OR_RETURN(file_, ChooseTransfers(fd(), path_, block.data()));
  return absl::OkStatus();
}

// What cannot be undone is a mark, which the next job knows.
void GivenFile::Unmark() {
  if (!is_device_) {
    [[maybe_unused]] const int undone = ftruncate(fd(), 0);
    return;
  }
  const PageBuffer zeros(kMarkBytes);
  if (!zeros.ok()) return;
  ssize_t written = -1;
  do {
    written = pwrite(fd(), zeros.data(), kMarkBytes, 0);
  } while (written < 0 && errno == EINTR);
}

absl::Status GivenFile::Remove() {
  if (!process_.IsCurrent() || is_device_) return absl::OkStatus();
  if (ftruncate(fd(), kMarkBytes) == 0) return absl::OkStatus();
  return Failed("cannot give back its space", errno);
}

}  // namespace terrace
