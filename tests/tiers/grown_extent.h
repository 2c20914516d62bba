// An extent of a file that grows where it must, as the mover and a tier's
// background do it together.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

inline absl::StatusOr<Extent> Take(DiskFile& file, int64_t size_bytes) {
  absl::StatusOr<Extent> extent = file.Allocate(size_bytes);
  if (!absl::IsResourceExhausted(extent.status())) return extent;
  const absl::StatusOr<Growth> growth = file.GrowthFor(size_bytes);
  if (!growth.ok()) return growth.status();
  const absl::StatusOr<int64_t> gained = file.Grow(*growth);
  if (!gained.ok()) return gained.status();
  file.AddSpace(*gained);
  return file.Allocate(size_bytes);
}

}  // namespace terrace
