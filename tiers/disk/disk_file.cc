#include "tiers/disk/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "tiers/disk/file_holder.h"
#include "tiers/disk/given_file.h"
#include "tiers/disk/job_directory.h"
#include "tiers/disk/job_files.h"
#include "tiers/disk/state_file.h"
#include "tiers/extent_allocator.h"
#include "tiers/extent_header.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int64_t kLargestFile = INT64_MAX;

absl::StatusOr<Extent> Named(const DiskFileInfo& info,
                             absl::StatusOr<Extent> extent) {
  if (extent.ok()) return extent;
  return WithIoFault(
      Reworded(extent.status(),
               absl::StrCat(info.file, ": ", extent.status().message())),
      {.path = info.file});
}

// The answer of what cannot grow.
absl::Status Full(const DiskFileInfo& info, const ExtentAllocator& extents,
                  int64_t size_bytes) {
  return WithIoFault(absl::ResourceExhaustedError(absl::StrCat(
                         info.file, ": an extent of ", size_bytes,
                         " bytes: ", extents.free_bytes(), " of ",
                         extents.capacity_bytes(), " are free (ENOSPC)")),
                     {ENOSPC, info.file});
}

// The answer of what may not grow.
absl::Status OverBudget(const DiskFileInfo& info, int64_t size_bytes,
                        int64_t budget_bytes, int64_t used_bytes) {
  return WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(
          info.file, ": an extent of ", size_bytes, " bytes: ", used_bytes,
          " of the budget of ", budget_bytes, " are taken (EDQUOT)")),
      {EDQUOT, info.file});
}

// What of a file extents may take.
struct Usable {
  int64_t begin = 0;
  int64_t end = 0;  // now
  bool grows = true;
  int64_t most = kLargestFile;  // where `end` never goes beyond
};

// No more than a budget takes.
Usable Within(Usable usable, int64_t budget_bytes) {
  if (budget_bytes == kNoBudget) return usable;
  usable.most = std::min(usable.most,
                         usable.begin + RoundDown(budget_bytes, kBlockBytes));
  usable.end = std::min(usable.end, usable.most);
  return usable;
}

// `all_bytes` are what the path could ever hold.
absl::Status CheckBudget(const DiskFileOptions& options, int64_t all_bytes) {
  const int64_t budget = options.budget_bytes;
  if (budget == kNoBudget) return absl::OkStatus();
  if (budget < kBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", options.path, "': a budget of ", budget,
                     " bytes; the least is ", kBlockBytes));
  }
  if (budget <= all_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("path '", options.path, "': a budget of ", budget,
                   " bytes, and there are ", all_bytes));
}

// Of the file system that it is on; any number where that cannot be told.
int64_t FileSystemBytes(const std::string& path) {
  struct statvfs found = {};
  if (statvfs(path.c_str(), &found) != 0 || found.f_blocks == 0) {
    return kLargestFile;
  }
  return static_cast<int64_t>(
      std::min<uint64_t>(found.f_blocks * found.f_frsize, kLargestFile));
}

class FileDiskTier : public DiskFile {
 public:
  FileDiskTier(std::unique_ptr<FileHolder> holder, int fd, DiskFileInfo info,
               Usable usable, int64_t segment_bytes)
      : segment_bytes_(segment_bytes),
        holder_(std::move(holder)),
        fd_(fd),
        info_(std::move(info)),
        grows_(usable.grows),
        most_bytes_(usable.most),
        extents_(usable.end) {
    if (usable.begin == 0) return;
    // The lowest offset of the only free range.
    const absl::StatusOr<Extent> kept = extents_.Allocate(usable.begin);
    TERRACE_CHECK(kept.ok() && kept->offset == 0);
    kept_bytes_ = usable.begin;
  }

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    absl::StatusOr<Extent> extent = extents_.Allocate(size_bytes);
    if (extent.ok()) holder_->OnUse();
    return Named(info_, std::move(extent));
  }

  void Free(Extent extent) override { extents_.Free(extent); }
  bool TakeAt(const Extent& range) override { return extents_.TryTake(range); }

  // By what is needed and a share more.
  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    if (size_bytes > INT64_MAX / 4) {
      return WithIoFault(absl::ResourceExhaustedError(absl::StrCat(
                             info_.file, ": an extent of ", size_bytes,
                             " bytes, more than a file can have")),
                         {EFBIG, info_.file});
    }
    const int64_t capacity = extents_.capacity_bytes();
    const int64_t need =
        RoundUp(size_bytes, kBlockBytes) - extents_.free_tail_bytes();
    if (need > most_bytes_ - capacity) {
      return OverBudget(info_, size_bytes, most_bytes_ - kept_bytes_,
                        used_bytes());
    }
    if (!grows_) return Full(info_, extents_, size_bytes);
    return GrowthBy(need, capacity, most_bytes_ - capacity, segment_bytes_);
  }

  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    TERRACE_CHECK(grows_);
    int64_t bytes = growth.bytes;
    absl::Status status = Lengthen(growth.offset, bytes);
    if (absl::IsResourceExhausted(status) && bytes > growth.least_bytes) {
      bytes = growth.least_bytes;
      status = Lengthen(growth.offset, bytes);
    }
    for (bool more = true; more && LacksRoom(status);) {
      more = holder_->MakeRoom();
      ++growth_progress_;
      status = Lengthen(growth.offset, bytes);
    }
    TERRACE_RETURN_IF_ERROR(status);
    return bytes;
  }

  void AddSpace(int64_t size_bytes) override { extents_.Grow(size_bytes); }
  int64_t growth_progress() const override { return growth_progress_; }

  int fd() const override { return fd_; }
  int64_t capacity_bytes() const override { return extents_.capacity_bytes(); }
  int64_t used_bytes() const override {
    return extents_.used_bytes() - kept_bytes_;
  }
  const DiskFileInfo& info() const override { return info_; }
  std::optional<KeptFile> Keep() const override {
    std::optional<KeptFile> kept = holder_->Keep();
    if (!kept.has_value()) return kept;
    kept->direct_io = info_.direct_io;
    kept->alignment = info_.alignment;
    kept->seal_id = info_.seal_id;
    return kept;
  }

  bool reclaims() const override { return holder_->reclaims(); }
  bool Reclaim() override { return holder_->Reclaim(); }

  absl::Status Remove() override { return holder_->Remove(); }

 private:
  absl::Status Lengthen(int64_t offset, int64_t size_bytes) {
    return Preallocate(fd_, info_.file, offset, size_bytes, &growth_progress_);
  }

  const int64_t segment_bytes_;
  const std::unique_ptr<FileHolder> holder_;
  const int fd_;  // the holder's
  const DiskFileInfo info_;
  const bool grows_;
  const int64_t most_bytes_;  // of the file
  ExtentAllocator extents_;
  int64_t kept_bytes_ = 0;  // at the beginning, allocated for ever
  std::atomic<int64_t> growth_progress_ = 0;  // read to see that it changes
};

class MemoryDiskTier : public DiskFile {
 public:
  MemoryDiskTier(int device, int64_t capacity_bytes)
      : device_(device),
        info_{.file = absl::StrCat("memory:", device),
              .direct_io_reason = "a device in memory",
              .alignment = 1,
              .budget_bytes = capacity_bytes},
        extents_(RoundDown(capacity_bytes, kBlockBytes)) {}

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return Named(info_, extents_.Allocate(size_bytes));
  }

  void Free(Extent extent) override { extents_.Free(extent); }
  bool TakeAt(const Extent& range) override { return extents_.TryTake(range); }

  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    return Full(info_, extents_, size_bytes);
  }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    return GrowthFor(growth.bytes).status();
  }
  void AddSpace(int64_t size_bytes) override { extents_.Grow(size_bytes); }

  int fd() const override { return device_; }
  int64_t capacity_bytes() const override { return extents_.capacity_bytes(); }
  int64_t used_bytes() const override { return extents_.used_bytes(); }
  const DiskFileInfo& info() const override { return info_; }
  absl::Status Remove() override { return absl::OkStatus(); }

 private:
  const int device_;
  const DiskFileInfo info_;
  ExtentAllocator extents_;
};

DiskFileInfo InfoOf(const DiskFileOptions& options, const std::string& name,
                    const StateFile& file) {
  return {.directory = options.path,
          .file = name,
          .direct_io = file.direct_io,
          .direct_io_reason = file.direct_io_reason,
          .alignment = file.alignment,
          .budget_bytes = options.budget_bytes};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskFile>> OpenDiskFile(
    const DiskFileOptions& options) {
  TERRACE_CHECK(options.segment_bytes > 0);
  struct stat node = {};
  if (stat(options.path.c_str(), &node) == 0 &&
      (S_ISREG(node.st_mode) || S_ISBLK(node.st_mode))) {
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<GivenFile> given,
                             GivenFile::Open(options.path));
    const int64_t all_bytes = given->is_device()
                                  ? given->end_bytes() - given->begin_bytes()
                                  : FileSystemBytes(options.path);
    TERRACE_RETURN_IF_ERROR(CheckBudget(options, all_bytes));
    const Usable usable =
        Within({given->begin_bytes(), given->end_bytes(), !given->is_device()},
               options.budget_bytes);
    const StateFile file = given->file();
    return std::make_unique<FileDiskTier>(HoldGiven(std::move(given)), file.fd,
                                          InfoOf(options, options.path, file),
                                          usable, options.segment_bytes);
  }
  TERRACE_RETURN_IF_ERROR(CheckBudget(options, FileSystemBytes(options.path)));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<JobDirectory> directory,
                           JobDirectory::Create(options.path));
  const std::string name = directory->state_file();
  const std::vector<std::string> elsewhere = directory->jobs_elsewhere();
  OwnDescriptor opened;
  absl::StatusOr<StateFile> made = MakeStateFile(directory->fd(), name, opened);
  for (bool more = true; more && LacksRoom(made.status());) {
    more = directory->MakeRoom();
    made = MakeStateFile(directory->fd(), name, opened);
  }
  TERRACE_ASSIGN_OR_RETURN(const StateFile file, std::move(made));
  // It is held as long as any transfer has the file: who reopens it waits for
  // that. The directory's own lock is held without, too.
  if (!TryLock(file.fd)) {
    return ErrnoError(name, "the file cannot be locked", errno);
  }
  DiskFileInfo info = InfoOf(options, name, file);
  info.jobs_elsewhere = elsewhere;
  info.seal_id = NewSealId();
  return std::make_unique<FileDiskTier>(
      HoldDirectory(std::move(directory), std::move(opened)), file.fd,
      std::move(info), Within({}, options.budget_bytes), options.segment_bytes);
}

absl::StatusOr<std::unique_ptr<DiskFile>> ReopenDiskFile(
    const DiskFileOptions& options, KeptFile kept, absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<JobDirectory> directory,
      JobDirectory::Reopen(options.path, kept.name, std::move(kept.lock)));
  const std::string name = directory->state_file();
  OwnDescriptor state = OwnDescriptor::OpenAt(
      directory->fd(), kJobStateName,
      O_RDWR | O_NOFOLLOW | O_CLOEXEC | (kept.direct_io ? O_DIRECT : 0));
  struct stat found = {};
  if (!state.ok() || fstat(state.get(), &found) != 0) {
    return ErrnoError(name, "cannot be opened again", errno);
  }
  if (!LockWithin(state.get(), deadline - SystemClock().Now())) {
    if (errno != EWOULDBLOCK) {
      return ErrnoError(name, "the file cannot be locked", errno);
    }
    return absl::DeadlineExceededError(absl::StrCat(
        name, ": transfers of the process that had it have not ended"));
  }
  const StateFile file = {.fd = state.get(),
                          .direct_io = kept.direct_io,
                          .direct_io_reason = "as it was",
                          .alignment = kept.alignment};
  DiskFileInfo info = InfoOf(options, name, file);
  info.jobs_elsewhere = directory->jobs_elsewhere();
  info.seal_id = kept.seal_id;
  Usable usable = Within({}, options.budget_bytes);
  usable.end = RoundDown(found.st_size, kBlockBytes);
  directory->Own();
  return std::make_unique<FileDiskTier>(
      HoldDirectory(std::move(directory), std::move(state)), file.fd,
      std::move(info), usable, options.segment_bytes);
}

std::unique_ptr<DiskFile> MakeMemoryDiskFile(int device,
                                             int64_t capacity_bytes) {
  return std::make_unique<MemoryDiskTier>(device, capacity_bytes);
}

}  // namespace terrace
