#include "tiers/pmem/pmem_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "tiers/disk/given_file.h"
#include "tiers/disk/job_directory.h"
#include "tiers/disk/job_files.h"
#include "tiers/disk/state_file.h"
#include "tiers/pmem/dax_device.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// A file system keeps some of its free blocks for its own records: where all
// is asked for, it gets a 64th less each time.
constexpr int64_t kLess = 64;
constexpr int kTries = 64;

int64_t Capped(uint64_t blocks, uint64_t block_bytes) {
  if (block_bytes != 0 && blocks > INT64_MAX / block_bytes) return INT64_MAX;
  return static_cast<int64_t>(blocks * block_bytes);
}

int64_t FreeBytes(int fd) {
  struct statvfs found = {};
  return fstatvfs(fd, &found) == 0 ? Capped(found.f_bavail, found.f_frsize) : 0;
}

// `path` is a directory, or a file that grows.
absl::Status CheckBudget(const std::string& path, int64_t budget_bytes) {
  struct statvfs found = {};
  if (statvfs(path.c_str(), &found) != 0 || found.f_blocks == 0) {
    return absl::OkStatus();  // which reserving will tell
  }
  const int64_t all = Capped(found.f_blocks, found.f_frsize);
  if (budget_bytes <= all) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("path '", path, "': a budget of ", budget_bytes,
                   " bytes, and there are ", all));
}

absl::Status OtherKind(const std::string& path, const std::string& kind) {
  return absl::InvalidArgumentError(absl::StrCat(
      "path '", path, "': ", kind,
      "; persistent memory is a directory or a file on a file system with "
      "DAX, or a DAX device"));
}

using MakeRoom = absl::FunctionRef<bool()>;

// `budget_bytes` is what was asked for in all; 0: all there is.
struct Growing {
  int fd = -1;
  std::string file;
  int64_t budget_bytes = 0;
};

absl::Status Lengthen(const Growing& growing, int64_t offset,
                      int64_t size_bytes, MakeRoom make_room) {
  const auto preallocate = [&] {
    std::atomic<int64_t> progress = 0;
    return Preallocate(growing.fd, growing.file, offset, size_bytes, &progress);
  };
  absl::Status status = preallocate();
  for (bool more = true; more && LacksRoom(status);) {
    more = make_room();
    status = preallocate();
  }
  if (!LacksRoom(status)) return status;
  const std::string budget =
      growing.budget_bytes == 0
          ? "no budget"
          : absl::StrCat("a budget of ", growing.budget_bytes, " bytes");
  return Reworded(status,
                  absl::StrCat(status.message(), "; with ", budget, ", ",
                               FreeBytes(growing.fd), " bytes are free"));
}

// The file is `first_bytes` long; the bytes that it gets behind them, of
// `wanted_bytes`. 0: all that can be had.
absl::StatusOr<int64_t> ReserveFile(const Growing& growing, int64_t first_bytes,
                                    int64_t wanted_bytes, MakeRoom make_room) {
  if (wanted_bytes != 0) {
    TERRACE_RETURN_IF_ERROR(
        Lengthen(growing, first_bytes, wanted_bytes, make_room));
    return wanted_bytes;
  }
  int64_t bytes = RoundDown(FreeBytes(growing.fd), kBlockBytes);
  for (int tries = 0;; ++tries) {
    bytes = std::max(bytes, kBlockBytes);
    const absl::Status status =
        Lengthen(growing, first_bytes, bytes, make_room);
    if (status.ok()) return bytes;
    if (!LacksRoom(status) || bytes == kBlockBytes || tries == kTries) {
      return status;
    }
    bytes =
        RoundDown(bytes - std::max(bytes / kLess, kBlockBytes), kBlockBytes);
  }
}

class DirectoryPlace final : public PmemPlace {
 public:
  static absl::StatusOr<std::unique_ptr<PmemPlace>> Open(
      const std::string& path, int64_t budget_bytes) {
    std::unique_ptr<DirectoryPlace> place(new DirectoryPlace(budget_bytes));
    TERRACE_ASSIGN_OR_RETURN(place->directory_, JobDirectory::Create(path));
    place->growing_.file = place->directory_->state_file();
    while (place->directory_->Reclaim()) {
    }
    TERRACE_RETURN_IF_ERROR(place->MakeFile());
    return place;
  }
  static absl::StatusOr<std::unique_ptr<PmemPlace>> Reopen(
      const std::string& path, int64_t budget_bytes, KeptMedium kept,
      int64_t used_bytes, absl::Time deadline) {
    std::unique_ptr<DirectoryPlace> place(new DirectoryPlace(budget_bytes));
    TERRACE_ASSIGN_OR_RETURN(
        place->directory_,
        JobDirectory::Reopen(path, kept.name, std::move(kept.file)));
    Growing& growing = place->growing_;
    growing.file = place->directory_->state_file();
    place->opened_ =
        OwnDescriptor::OpenAt(place->directory_->fd(), kJobStateName,
                              O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    growing.fd = place->opened_.get();
    if (growing.fd < 0) {
      return ErrnoError(growing.file, "cannot be opened again", errno);
    }
    if (!LockWithin(growing.fd, deadline - SystemClock().Now())) {
      if (errno != EWOULDBLOCK) {
        return ErrnoError(growing.file, "the file cannot be locked", errno);
      }
      return absl::DeadlineExceededError(absl::StrCat(
          growing.file, ": what another process had under way has not ended"));
    }
    place->directory_->Own();
    place->used_bytes_ = used_bytes;
    TERRACE_RETURN_IF_ERROR(place->BeginEmpty().status());
    return place;
  }
  const std::string& file() const override { return growing_.file; }
  int fd() const override { return growing_.fd; }
  int64_t least_mapping_bytes() const override { return kBlockBytes; }

  absl::StatusOr<PmemSpace> Reserve() override {
    int64_t bytes = kBlockBytes;
    if (growing_.budget_bytes != kBlockBytes) {
      const int64_t wanted =
          std::max<int64_t>(growing_.budget_bytes - kBlockBytes, 0);
      TERRACE_ASSIGN_OR_RETURN(
          const int64_t more,
          ReserveFile(growing_, kBlockBytes, wanted,
                      [this] { return directory_->MakeRoom(); }));
      bytes += more;
    }
    return PmemSpace{{0, bytes}, bytes};
  }

  // The file is as long as it may become, so that all of it can be mapped. It
  // is held as long as anything of this process has it: who reopens it waits
  // for that.
  absl::StatusOr<PmemSpace> BeginEmpty() override {
    const int64_t most = growing_.budget_bytes;
    if (!TryLock(growing_.fd)) {
      return ErrnoError(growing_.file, "the file cannot be locked", errno);
    }
    if (most > 0 && ftruncate(growing_.fd, used_bytes_) == 0 &&
        ftruncate(growing_.fd, most) == 0) {
      return PmemSpace{{0, most}, most};
    }
    return ErrnoError(growing_.file,
                      absl::StrCat("cannot have ", most, " bytes"), errno);
  }

  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    const int64_t left = growing_.budget_bytes - growth.offset;
    if (growth.least_bytes > left) {
      return absl::ResourceExhaustedError(
          absl::StrCat(growing_.file, ": growth by ", growth.least_bytes,
                       " bytes: ", left, " bytes of addresses are left"));
    }
    int64_t bytes = std::min(growth.bytes, left);
    absl::Status status =
        Lengthen(growing_, growth.offset, bytes, [] { return false; });
    if (LacksRoom(status)) {
      bytes = growth.least_bytes;
      status = Lengthen(growing_, growth.offset, bytes,
                        [this] { return directory_->MakeRoom(); });
    }
    TERRACE_RETURN_IF_ERROR(status);
    return bytes;
  }

  std::optional<KeptMedium> Keep() const override {
    KeptMedium kept{.name = directory_->name(),
                    .file = directory_->lock().Share()};
    if (!kept.file.ok()) return std::nullopt;
    return kept;
  }

  absl::Status Remove() override {
    if (!directory_->IsOwner()) return absl::OkStatus();
    absl::Status status = directory_->Remove();
    // An open file keeps its blocks.
    if (ftruncate(growing_.fd, 0) != 0) {
      status.Update(
          ErrnoError(growing_.file, "cannot give back its space", errno));
    }
    return status;
  }

 private:
  explicit DirectoryPlace(int64_t budget_bytes) {
    growing_.budget_bytes = budget_bytes;
  }

  absl::Status MakeFile() {
    const auto open_file = [this] {
      opened_ = OwnDescriptor::OpenAt(
          directory_->fd(), kJobStateName,
          O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
      growing_.fd = opened_.get();
      return growing_.fd >= 0
                 ? absl::OkStatus()
                 : ErrnoError(growing_.file, "cannot make the file", errno);
    };
    absl::Status status = open_file();
    for (bool more = true; more && LacksRoom(status);) {
      more = directory_->MakeRoom();
      status = open_file();
    }
    TERRACE_RETURN_IF_ERROR(status);
    return Lengthen(growing_, 0, kBlockBytes,
                    [this] { return directory_->MakeRoom(); });
  }

  std::unique_ptr<JobDirectory> directory_;  // removes the file in the end
  OwnDescriptor opened_;
  Growing growing_;         // with that descriptor
  int64_t used_bytes_ = 0;  // that another process has left
};

class FilePlace final : public PmemPlace {
 public:
  static absl::StatusOr<std::unique_ptr<PmemPlace>> Open(
      const std::string& path, int64_t budget_bytes) {
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<GivenFile> given,
                             GivenFile::Open(path));
    if (given->is_device()) return OtherKind(path, "became a block device");
    // Reads of any alignment, which O_DIRECT refuses.
    const int fd = given->file().fd;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0) {
      return ErrnoError(path, "cannot be read through the page cache", errno);
    }
    return std::unique_ptr<PmemPlace>(
        new FilePlace(path, budget_bytes, std::move(given)));
  }

  const std::string& file() const override { return path_; }
  int fd() const override { return given_->file().fd; }
  int64_t least_mapping_bytes() const override { return GivenFile::kMarkBytes; }

  absl::StatusOr<PmemSpace> Reserve() override {
    const int64_t begin = given_->begin_bytes();
    TERRACE_ASSIGN_OR_RETURN(const int64_t bytes,
                             ReserveFile({fd(), path_, budget_bytes_}, begin,
                                         budget_bytes_, [] { return false; }));
    return PmemSpace{{begin, bytes}, begin + bytes};
  }

  // All of its space is taken: the mark stays with the file from here on.
  absl::Status Claim(PersistDomain* domain, const std::vector<Extent>&,
                     int64_t unsafe_shutdowns) override {
    given_->Keep();
    if (unsafe_shutdowns < 0) return absl::OkStatus();
    return WriteMark(domain, unsafe_shutdowns);
  }
  int64_t marked_unsafe_shutdowns() const override {
    return given_->marked_unsafe_shutdowns();
  }
  absl::Status Remove() override { return given_->Remove(); }

 private:
  FilePlace(const std::string& path, int64_t budget_bytes,
            std::unique_ptr<GivenFile> given)
      : path_(path), budget_bytes_(budget_bytes), given_(std::move(given)) {}

  const std::string path_;
  const int64_t budget_bytes_;
  const std::unique_ptr<GivenFile> given_;
};

class DevicePlace final : public PmemPlace {
 public:
  explicit DevicePlace(std::unique_ptr<DaxDevice> device)
      : device_(std::move(device)) {}

  const std::string& file() const override { return device_->path(); }
  int fd() const override { return device_->fd(); }
  bool is_dax_device() const override { return true; }
  int64_t least_mapping_bytes() const override { return device_->alignment(); }
  absl::StatusOr<PmemSpace> Reserve() override { return device_->space(); }
  absl::Status Claim(PersistDomain* domain, const std::vector<Extent>& bad,
                     int64_t unsafe_shutdowns) override {
    return device_->Claim(domain, bad, unsafe_shutdowns);
  }
  int64_t marked_unsafe_shutdowns() const override {
    return device_->marked_unsafe_shutdowns();
  }
  absl::Status Remove() override { return absl::OkStatus(); }  // has its mark

 private:
  const std::unique_ptr<DaxDevice> device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PmemPlace>> PmemPlace::Reopen(
    const std::string& place, int64_t budget_bytes, KeptMedium kept,
    int64_t used_bytes, absl::Time deadline) {
  return DirectoryPlace::Reopen(place, RoundDown(budget_bytes, kBlockBytes),
                                std::move(kept), used_bytes, deadline);
}

absl::StatusOr<PmemSpace> PmemPlace::BeginEmpty() {
  return absl::InvalidArgumentError(
      absl::StrCat(file(), ": only a file of a directory grows"));
}

absl::StatusOr<int64_t> PmemPlace::Grow(const Growth& /*growth*/) {
  return BeginEmpty().status();
}

absl::StatusOr<std::unique_ptr<PmemPlace>> PmemPlace::Open(
    const std::string& place, int64_t budget_bytes) {
  if (budget_bytes != 0 && budget_bytes < kBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", place, "': a budget of ", budget_bytes,
                     " bytes; the least is ", kBlockBytes));
  }
  const int64_t budget = RoundDown(budget_bytes, kBlockBytes);
  struct stat node = {};
  if (stat(place.c_str(), &node) != 0) {
    return ErrnoError(absl::StrCat("path '", place, "'"), "cannot be looked at",
                      errno, place);
  }
  if (S_ISBLK(node.st_mode)) return OtherKind(place, "a block device");
  if (S_ISCHR(node.st_mode)) {
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<DaxDevice> device,
                             DaxDevice::Open(place, budget));
    return std::make_unique<DevicePlace>(std::move(device));
  }
  if (!S_ISDIR(node.st_mode) && !S_ISREG(node.st_mode)) {
    return OtherKind(place, "a pipe or a socket");
  }
  TERRACE_RETURN_IF_ERROR(CheckBudget(place, budget));
  return S_ISDIR(node.st_mode) ? DirectoryPlace::Open(place, budget)
                               : FilePlace::Open(place, budget);
}

}  // namespace terrace
