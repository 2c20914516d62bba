// Room in memory that moves between a device and the resting tiers pass
// through: no copy of a tensor lies there, a slot is a transfer's for as long
// as that lasts. The slots are in ranges, one for each window of the device, as
// many up to the device as down from it; any transfer may have one that it
// fits. A slot that a late move may still use is not taken again before the
// device lets go. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tiers/reservation.h"

namespace terrace {

// The slots of a window of so many, in each direction.
constexpr int StagingSlots(int window_slots) {
  return window_slots < 2 ? window_slots : 2;
}

class StagingRoom {
 private:
  class Range;

 public:
  enum class Way : uint8_t { kUp, kDown };

  // Keeps a range open: nothing new passes through it after its end.
  class Lease {
   public:
    Lease() = default;
    explicit Lease(Range* range) : range_(range) {}
    ~Lease();
    Lease(Lease&& other) noexcept
        : range_(std::exchange(other.range_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(range_, other.range_);
      return *this;
    }
    bool empty() const { return range_ == nullptr; }

   private:
    Range* range_ = nullptr;
  };

  StagingRoom();
  ~StagingRoom();  // no slot is taken, or what has it was abandoned

  // `slots` of `stride` bytes in each direction, all of `room`. Outlives the
  // lease.
  Lease Open(Reservation room, int64_t stride, int slots);
  // Empty: none is free.
  Reservation Take(Way way, int64_t size_bytes);
  // OK: one that is taken comes back. Else why none does: the first late one's
  // Status, or Cancelled: no range that is open has such slots.
  absl::Status Hope(Way way, int64_t size_bytes) const;
  void SetLate(const Reservation& slot, absl::Status why);
  // Gives back the ranges that are closed and empty.
  void Sweep();

  int64_t size_bytes() const;
  int64_t open_bytes() const;
  // One will be given back.
  bool closing() const { return size_bytes() > open_bytes(); }

 private:
  std::vector<std::unique_ptr<Range>> ranges_;  // in the order they came
};

}  // namespace terrace
