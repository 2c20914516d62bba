// Where a SpillRoom's memory is from. Ranges are named by their offset from the
// beginning of a job's arena, outside which they lie.
//
// One thread at a time (the mover).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "tiers/extent.h"

namespace terrace {

class SpillSource {
 public:
  virtual ~SpillSource() = default;
  // Populated memory of so many bytes, whole blocks of 4 KiB.
  // ResourceExhausted: that much is not available.
  virtual absl::StatusOr<int64_t> Take(int64_t size_bytes) = 0;
  // That range itself, which a runtime before this one has populated. False:
  // it is not free, or the source keeps nothing of another runtime's.
  virtual bool TakeAt(const Extent& /*range*/) { return false; }
  // All that is to be taken so has been.
  virtual void EndTakeAt() {}
  // Of what was taken, all of it.
  virtual void Give(const Extent& range) = 0;
  // What is taken is never unmapped: it may still be used.
  virtual void Leak() = 0;
};

}  // namespace terrace
