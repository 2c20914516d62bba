// A range of a tier, or a slot of a window there, that is taken: while it lives
// no other reservation has those bytes. Move-only; the destructor gives them
// back. A transfer past its deadline keeps its reservations for as long as the
// device may still touch them.
//
// One thread at a time (the mover). What it was reserved from outlives it.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tiers/extent.h"

namespace terrace {

// Tiers of a runtime, the fastest first. Customers work in a device's memory
// and in the host's; all others, from 1 on, are places to rest.
using TierId = int;
inline constexpr TierId kHbmTier = -1;
inline constexpr TierId kDramTier = 0;
inline constexpr TierId kNoTier = INT_MAX;
constexpr bool IsWorkingTier(TierId tier) { return tier <= kDramTier; }
inline constexpr int kWorkingTiers = 2;
// A working tier's place in an array of them, memory first.
constexpr size_t WorkingIndex(TierId tier) {
  return static_cast<size_t>(kDramTier - tier);
}

// What ranges are reserved from.
class Reserver {
 public:
  virtual TierId id() const = 0;
  // Only a Reservation's end calls it, once for each.
  virtual void Free(Extent extent) = 0;

 protected:
  ~Reserver() = default;
};

class Reservation {
 public:
  Reservation() = default;
  Reservation(Reserver* from, Extent extent)
      : from_(from), tier_(from->id()), extent_(extent) {}
  ~Reservation() { Reset(); }
  Reservation(Reservation&& other) noexcept
      : from_(std::exchange(other.from_, nullptr)),
        tier_(std::exchange(other.tier_, kNoTier)),
        extent_(std::exchange(other.extent_, {})) {}
  Reservation& operator=(Reservation&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    from_ = std::exchange(other.from_, nullptr);
    tier_ = std::exchange(other.tier_, kNoTier);
    extent_ = std::exchange(other.extent_, {});
    return *this;
  }

  bool empty() const { return from_ == nullptr; }
  TierId tier() const { return tier_; }
  const Extent& extent() const { return extent_; }
  const Reserver* from() const { return from_; }

  void Reset() {
    if (from_ == nullptr) return;
    tier_ = kNoTier;
    std::exchange(from_, nullptr)->Free(std::exchange(extent_, {}));
  }

 private:
  Reserver* from_ = nullptr;
  TierId tier_ = kNoTier;
  Extent extent_;
};

}  // namespace terrace
