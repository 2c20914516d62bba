// A disk file whose growth, reclaim and removal end as the test says. Its
// bytes, if there are any, are a memory engine's.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tiers/disk/disk_file.h"
#include "tiers/extent_allocator.h"

namespace terrace {

class ScriptedDiskFile final : public DiskFile {
 public:
  // It has `size_bytes` and grows to `most_bytes`, by exactly what is lacking.
  ScriptedDiskFile(int device, int64_t size_bytes, int64_t most_bytes)
      : device_(device), most_bytes_(most_bytes), space_(size_bytes) {
    info_.directory = absl::StrCat("disk", device);
    info_.file = absl::StrCat("disk", device, "/state");
  }

  // What the disk does from here on.
  absl::Status grow_status;
  absl::Status remove_status;
  int64_t progress = 0;
  int reclaim_pieces = 0;  // set before a tier is made of it
  // What it was asked for so far.
  int growths = 0;
  int removals = 0;

  absl::StatusOr<Extent> Allocate(int64_t size_bytes) override {
    return space_.Allocate(size_bytes);
  }
  void Free(Extent extent) override { space_.Free(extent); }
  bool TakeAt(const Extent& range) override { return space_.TryTake(range); }
  absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const override {
    const int64_t lacking = size_bytes - space_.free_tail_bytes();
    if (capacity_bytes() + lacking > most_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(info_.file, ": no room for ", size_bytes, " bytes"));
    }
    return Growth{capacity_bytes(), lacking, lacking};
  }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    ++growths;
    if (!grow_status.ok()) return grow_status;
    return growth.bytes;
  }
  void AddSpace(int64_t size_bytes) override { space_.Grow(size_bytes); }
  int64_t growth_progress() const override { return progress; }
  bool reclaims() const override { return reclaim_pieces > 0; }
  bool Reclaim() override { return --reclaim_pieces > 0; }

  int fd() const override { return device_; }
  int64_t capacity_bytes() const override { return space_.capacity_bytes(); }
  int64_t used_bytes() const override { return space_.used_bytes(); }
  const DiskFileInfo& info() const override { return info_; }
  absl::Status Remove() override {
    ++removals;
    return remove_status;
  }

 private:
  const int device_;
  const int64_t most_bytes_;
  DiskFileInfo info_;
  ExtentAllocator space_;
};

}  // namespace terrace
