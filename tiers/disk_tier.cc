#include "tiers/disk_tier.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
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

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
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
    if (size_bytes > INT64_MAX / 4) {
      return absl::ResourceExhaustedError(
          absl::StrCat(info_.file, ": an extent of ", size_bytes, " bytes"));
    }
    absl::StatusOr<Extent> extent = extents_.Allocate(size_bytes);
    if (extent.ok() || !absl::IsResourceExhausted(extent.status())) {
      return extent;
    }
    TERRACE_RETURN_IF_ERROR(
        Grow(RoundUp(size_bytes, kGranularity) - extents_.free_tail_bytes()));
    return extents_.Allocate(size_bytes);
  }

  void Free(Extent extent) override { extents_.Free(extent); }

  int fd() const override { return fd_; }
  int64_t capacity_bytes() const override { return extents_.capacity_bytes(); }
  int64_t used_bytes() const override { return extents_.used_bytes(); }
  const DiskTierInfo& info() const override { return info_; }

  // The open file keeps its blocks until it is closed, so they are given back
  // here; a transfer still in flight then hits nothing of anybody's.
  absl::Status Remove() override {
    if (!directory_->IsOwner()) return absl::OkStatus();
    if (ftruncate(fd_, 0) != 0) {
      return ErrnoError(info_.file, "cannot give back its space", errno);
    }
    return directory_->Remove();
  }

 private:
  // By what is needed and a share more, or else by exactly what is needed.
  absl::Status Grow(int64_t need_bytes) {
    const int64_t capacity = extents_.capacity_bytes();
    const int64_t ahead = std::min(segment_bytes_, capacity / kGrowthShare);
    const int64_t growth = RoundUp(std::max(need_bytes, ahead), kGrowthUnit);
    absl::Status status = Preallocate(fd_, info_.file, capacity, growth);
    if (absl::IsResourceExhausted(status) && growth > need_bytes) {
      status = Preallocate(fd_, info_.file, capacity, need_bytes);
      if (status.ok()) extents_.Grow(need_bytes);
      return status;
    }
    if (status.ok()) extents_.Grow(growth);
    return status;
  }

  const int64_t segment_bytes_;
  // Removed after the file is closed.
  std::unique_ptr<JobDirectory> directory_;
  const int fd_;
  const DiskTierInfo info_;
  ExtentAllocator extents_{0, kGranularity};
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
    absl::StatusOr<Extent> extent = extents_.Allocate(size_bytes);
    if (extent.ok()) return extent;
    return absl::Status(
        extent.status().code(),
        absl::StrCat(info_.file, ": ", extent.status().message()));
  }

  void Free(Extent extent) override { extents_.Free(extent); }

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
