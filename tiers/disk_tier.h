// One disk path: the job's own file in its own locked subdirectory, its
// extents and its space. Moves no bytes; aio does.
//
// <path>/terrace-<pid>-<random>/state: the subdirectory is locked (flock)
// for as long as the tier lives. Locked ones of others are never touched;
// stale unlocked ones are reclaimed on Open, under a lock on the path.
// One thread at a time (the mover).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tiers/extent.h"

namespace terrace {

struct DiskTierInfo {
  std::string directory;  // as the user named it
  std::string file;
  bool direct_io = false;
  std::string direct_io_reason;  // of the buffered fallback
  int64_t alignment = 4096;      // of memory, offset and length
};

class DiskTier {
 public:
  virtual ~DiskTier() = default;

  // 4 KiB-aligned; grows the file by a preallocated segment when it must.
  // ResourceExhausted: the disk is full; names path and bytes.
  virtual absl::StatusOr<Extent> Allocate(int64_t size_bytes) = 0;
  virtual void Free(Extent extent) = 0;

  virtual int fd() const = 0;                  // for IoGroup::AddPath
  virtual int64_t capacity_bytes() const = 0;  // preallocated
  virtual int64_t used_bytes() const = 0;
  virtual const DiskTierInfo& info() const = 0;

  // Removes the job's file and directory. The destructor does so too.
  virtual absl::Status Remove() = 0;
};

struct DiskTierOptions {
  std::string directory;             // existing, writable
  int64_t segment_bytes = 64 << 20;  // growth
};

absl::StatusOr<std::unique_ptr<DiskTier>> OpenDiskTier(
    const DiskTierOptions& options);

// Space of device `device` of a memory engine.
std::unique_ptr<DiskTier> MakeMemoryDiskTier(int device,
                                             int64_t capacity_bytes);

}  // namespace terrace
