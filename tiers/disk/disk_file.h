// One disk path: the job's file or device, its extents and its space. Moves no
// bytes; aio does.
//
// Of a directory, <path>/terrace-<pid>-<random>/state: the subdirectory is
// locked (flock) for as long as the tier lives. Locked ones of others are never
// touched; stale unlocked ones are removed by Reclaim, piece by piece, and
// where opening or Grow lacks room.
// A regular file or a block device is itself locked and used: given_file.h.
//
// One thread at a time (the mover), and it never blocks, but for Grow, Reclaim
// and Remove: these ask the disk, which may not answer. They run on any one
// other thread meanwhile, one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "tiers/disk/kept_file.h"
#include "tiers/extent.h"
#include "tiers/growth/growth.h"

namespace terrace {

// As far as the disk has room.
inline constexpr int64_t kNoBudget = 0;

struct DiskFileInfo {
  std::string directory;  // as the user named it: perhaps a file or device
  std::string file;
  bool direct_io = false;
  std::string direct_io_reason;     // of the buffered fallback
  int64_t alignment = kBlockBytes;  // of memory, offset and length
  int64_t budget_bytes = kNoBudget;
  std::vector<std::string> jobs_elsewhere;  // JobDirectory's
  // Of a directory's file that may be kept beyond the process: in the headers
  // of what it holds; 0: it holds nothing, and any number will do.
  uint64_t seal_id = 0;
};

class DiskFile {
 public:
  virtual ~DiskFile() = default;

  // 4 KiB-aligned, of the space there is. ResourceExhausted: that has no room
  // for it; names path and bytes.
  virtual absl::StatusOr<Extent> Allocate(int64_t size_bytes) = 0;
  virtual void Free(Extent extent) = 0;
  // That range itself. False: it is not there, or not free.
  virtual bool TakeAt(const Extent& /*range*/) { return false; }

  // What the file lacks for such an extent. ResourceExhausted: it cannot grow
  // by that much; with EDQUOT where the budget ends (as a quota does, since the
  // disk may well have room), ENOSPC where the device does.
  virtual absl::StatusOr<Growth> GrowthFor(int64_t size_bytes) const = 0;
  // Preallocates; returns the bytes gained, for AddSpace. ResourceExhausted:
  // the disk is full, also without what killed jobs left there; names path,
  // bytes and errno. The file is as before then.
  virtual absl::StatusOr<int64_t> Grow(const Growth& growth) = 0;
  virtual void AddSpace(int64_t size_bytes) = 0;
  // Rises while Grow gets on. Thread-safe.
  virtual int64_t growth_progress() const { return 0; }

  // Whether Reclaim may have anything to do. Constant.
  virtual bool reclaims() const { return false; }
  // Gives back a piece of what killed jobs left on the path. False: nothing is
  // left to do.
  virtual bool Reclaim() { return false; }

  virtual int fd() const = 0;                  // for IoPaths::AddPath
  virtual int64_t capacity_bytes() const = 0;  // preallocated
  virtual int64_t used_bytes() const = 0;
  virtual const DiskFileInfo& info() const = 0;
  // How it is found again once this process has gone; with a descriptor of the
  // same lock. Nullopt: it goes with the process.
  virtual std::optional<KeptFile> Keep() const { return std::nullopt; }

  // Removes the job's file and directory and gives back their space; of a
  // given file its space. The destructor does so too for a directory, and takes
  // the mark out of a given file or device in which no extent ever was.
  virtual absl::Status Remove() = 0;
};

struct DiskFileOptions {
  std::string path;  // an existing directory, regular file or block device
  int64_t segment_bytes = kGrowthAheadBytes;  // growth
  // Of extents, at most; the mark of a given file is not one. InvalidArgument:
  // less than a block, or more than the device or the file system has.
  int64_t budget_bytes = kNoBudget;
};

absl::StatusOr<std::unique_ptr<DiskFile>> OpenDiskFile(
    const DiskFileOptions& options);

// What another process has left on the path, with all that it holds; nobody
// else has it. What that process had under way there has ended by then.
// NotFound: it is gone; InvalidArgument: the lock is another's;
// DeadlineExceeded: what is under way there has not ended by `deadline`, which
// is SystemClock()'s.
absl::StatusOr<std::unique_ptr<DiskFile>> ReopenDiskFile(
    const DiskFileOptions& options, KeptFile kept, absl::Time deadline);

// Space of device `device` of a memory engine.
std::unique_ptr<DiskFile> MakeMemoryDiskFile(int device,
                                             int64_t capacity_bytes);

}  // namespace terrace
