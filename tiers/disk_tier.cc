#include "tiers/disk_tier.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"
#include "tiers/extent_allocator.h"
#include "tiers/job_directory.h"
#include "tiers/state_file.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int64_t kGranularity = 4096;
constexpr int64_t kGrowthUnit = 1 << 20;
// What growth may take beyond the need, as a share of what is there: few
// calls for a large state, little waste for a small one.
constexpr int64_t kGrowthShare = 16;

absl::StatusOr<Extent> Named(const DiskTierInfo& info,
                             absl::StatusOr<Extent> extent) {
  if (extent.ok()) return extent;
  return WithIoFault(
      Reworded(extent.status(),
               absl::StrCat(info.file, ": ", extent.status().message())),
      {.path = info.file});
}

class FileDiskTier : public DiskTier {
 public:
  FileDiskTier(const DiskTierOptions& options,
               std::unique_ptr<JobDirectory> directory, StateFile file)
      : segment_bytes_(options.segment_bytes),
        directory_(std::move(directory)),
        fd_(file.fd),
        info_{.directory = options.directory,
              .file = directory_->state_file(),
              .direct_io = file.direct_io,
              .direct_io_reason = std::move(file.direct_io_reason),
              .alignment = file.alignment} {}

  ~FileDiskTier() override { close(fd_); }

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return Named(info_, extents_.Allocate(size_bytes));
  }

  void Free(Extent extent) override { extents_.Free(extent); }

  // By what is needed and a share more.
  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    if (size_bytes > INT64_MAX / 4) {
      return absl::ResourceExhaustedError(
          absl::StrCat(info_.file, ": an extent of ", size_bytes, " bytes"));
    }
    const int64_t capacity = extents_.capacity_bytes();
    const int64_t need =
        RoundUp(size_bytes, kGranularity) - extents_.free_tail_bytes();
    const int64_t ahead = std::min(segment_bytes_, capacity / kGrowthShare);
    return Growth{.offset = capacity,
                  .least_bytes = need,
                  .bytes = RoundUp(std::max(need, ahead), kGrowthUnit)};
  }

  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    absl::Status status = Preallocate(fd_, info_.file, growth.offset,
                                      growth.bytes, &growth_progress_);
    if (status.ok()) return growth.bytes;
    if (!absl::IsResourceExhausted(status) ||
        growth.bytes <= growth.least_bytes) {
      return status;
    }
    TERRACE_RETURN_IF_ERROR(Preallocate(fd_, info_.file, growth.offset,
                                        growth.least_bytes, &growth_progress_));
    return growth.least_bytes;
  }

  void AddSpace(int64_t size_bytes) override { extents_.Grow(size_bytes); }
  int64_t growth_progress() const override { return growth_progress_; }

  int fd() const override { return fd_; }
  int64_t capacity_bytes() const override { return extents_.capacity_bytes(); }
  int64_t used_bytes() const override { return extents_.used_bytes(); }
  const DiskTierInfo& info() const override { return info_; }

  // The open file keeps its blocks until it is closed, so they are given back
  // here; a transfer still in flight then hits nothing of anybody's. Last, as
  // it may have to wait for such a transfer.
  absl::Status Remove() override {
    if (!directory_->IsOwner()) return absl::OkStatus();
    absl::Status status = directory_->Remove();
    if (ftruncate(fd_, 0) != 0) {
      status.Update(
          ErrnoError(info_.file, "cannot give back its space", errno));
    }
    return status;
  }

 private:
  const int64_t segment_bytes_;
  // Removed after the file is closed.
  std::unique_ptr<JobDirectory> directory_;
  const int fd_;
  const DiskTierInfo info_;
  ExtentAllocator extents_{0, kGranularity};
  std::atomic<int64_t> growth_progress_ = 0;  // read to see that it changes
};

class MemoryDiskTier : public DiskTier {
 public:
  MemoryDiskTier(int device, int64_t capacity_bytes)
      : device_(device),
        info_{.file = absl::StrCat("memory:", device),
              .direct_io_reason = "a device in memory",
              .alignment = 1},
        extents_(capacity_bytes / kGranularity * kGranularity, kGranularity) {}

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return Named(info_, extents_.Allocate(size_bytes));
  }

  void Free(Extent extent) override { extents_.Free(extent); }

  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    return absl::ResourceExhaustedError(absl::StrCat(
        info_.file, ": an extent of ", size_bytes, " bytes: ",
        extents_.free_bytes(), " of ", capacity_bytes(), " are free"));
  }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    return GrowthFor(growth.bytes).status();
  }
  void AddSpace(int64_t size_bytes) override { extents_.Grow(size_bytes); }

  int fd() const override { return device_; }
  int64_t capacity_bytes() const override { return extents_.capacity_bytes(); }
  int64_t used_bytes() const override { return extents_.used_bytes(); }
  const DiskTierInfo& info() const override { return info_; }
  absl::Status Remove() override { return absl::OkStatus(); }

 private:
  const int device_;
  const DiskTierInfo info_;
  ExtentAllocator extents_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> OpenDiskTier(
    const DiskTierOptions& options) {
  TERRACE_CHECK(options.segment_bytes > 0);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<JobDirectory> directory,
                           JobDirectory::Create(options.directory));
  TERRACE_ASSIGN_OR_RETURN(
      StateFile file, MakeStateFile(directory->fd(), directory->state_file()));
  return std::make_unique<FileDiskTier>(options, std::move(directory),
                                        std::move(file));
}

std::unique_ptr<DiskTier> MakeMemoryDiskTier(int device,
                                             int64_t capacity_bytes) {
  return std::make_unique<MemoryDiskTier>(device, capacity_bytes);
}

}  // namespace terrace
