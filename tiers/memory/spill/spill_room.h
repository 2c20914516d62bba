// Memory beside a job's arena, for what must be had and has no room in the
// arena. Each range is populated, and goes when its reservation ends. An extent
// counts from the arena's beginning, so that whoever addresses the arena
// addresses the range; it lies outside the arena, and may be below it.
//
// One thread at a time (the mover). What leaks stays for the process's life. A
// forked child has no such memory.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "tiers/memory/spill/spill_source.h"
#include "tiers/reservation.h"

namespace terrace {

class SpillRoom final : public Reserver {
 public:
  // Of the memory `tier`. Who made the source may look at it, too.
  SpillRoom(TierId tier, std::shared_ptr<SpillSource> source)
      : tier_(tier), source_(std::move(source)) {}

  TierId id() const override { return tier_; }
  // ResourceExhausted: that much memory is not available.
  absl::StatusOr<Reservation> Allocate(int64_t size_bytes);
  // As SpillSource has it; empty: it cannot be had.
  Reservation TakeAt(const Extent& range);
  void EndTakeAt() { source_->EndTakeAt(); }
  void Free(Extent extent) override;
  // What is reserved is never unmapped: it may still be used.
  void Leak() { source_->Leak(); }

  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  // Of what was had.
  Reservation Reserve(const Extent& range);

  const TierId tier_;
  const std::shared_ptr<SpillSource> source_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace terrace
