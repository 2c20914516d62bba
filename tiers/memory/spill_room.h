// Memory of the process beside a job's arena, for what must be had and has no
// room in the arena. Each range is a mapping of its own, populated, and goes
// when its reservation ends. An extent counts from the arena's beginning, so
// that whoever addresses the arena addresses the range; it lies outside the
// arena, and may be below it.
//
// One thread at a time (the mover). What leaks stays for the process's life. A
// forked child has no such memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tiers/memory/host_arena.h"
#include "tiers/reservation.h"

namespace terrace {

class SpillRoom final : public Reserver {
 public:
  // Of the memory `tier`, whose arena begins there.
  SpillRoom(TierId tier, const std::byte* arena) : tier_(tier), arena_(arena) {}

  TierId id() const override { return tier_; }
  // ResourceExhausted: that much memory is not available.
  absl::StatusOr<Reservation> Allocate(int64_t size_bytes);
  void Free(Extent extent) override;
  // What is reserved is never unmapped: it may still be used.
  void Leak();

  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  const TierId tier_;
  const std::byte* const arena_;
  absl::flat_hash_map<int64_t, std::unique_ptr<HostArena>>
      ranges_;  // by offset
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace terrace
