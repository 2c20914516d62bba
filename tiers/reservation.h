// A range of a tier, or a slot of a window there, that is taken: while it lives
// no other reservation has those bytes. Move-only; the destructor gives them
// back. A transfer past its deadline keeps its reservations for as long as the
// device may still touch them.
//
// One thread at a time (the mover). What it was reserved from outlives it.
#pragma once

#include <utility>

#include "terrace/tier.h"
#include "tiers/extent.h"

namespace terrace {

// Which tier of a runtime. A name: nothing is counted with it, and what differs
// by kind is asked of the tier, or of the kind.
struct TierId {
  TierKind kind = TierKind::kDisk;
  int number = -1;  // among the runtime's tiers of that kind; -1: no tier

  friend constexpr bool operator==(TierId, TierId) = default;
  template <typename Hash>
  friend Hash AbslHashValue(Hash hash, TierId tier) {
    return Hash::combine(std::move(hash), tier.kind, tier.number);
  }
};

inline constexpr TierId kNoTier;
// The first memory, which every runtime has: what has no room of its own to
// move through passes through it, and queues without a name work there.
inline constexpr TierId kDramTier = {TierKind::kDram, 0};

constexpr bool IsMemory(TierId tier) { return tier.kind == TierKind::kDram; }
constexpr bool IsDevice(TierId tier) { return tier.kind == TierKind::kHbm; }
// Customers work in memory and on devices; the others are places to rest.
constexpr bool IsWorkingTier(TierId tier) {
  return IsMemory(tier) || IsDevice(tier);
}
constexpr bool IsRestingTier(TierId tier) {
  return tier != kNoTier && !IsWorkingTier(tier);
}
// Of the working tiers that have the newest contents of a tensor one keeps
// them: the first in this order. It is dirty until they are written back; the
// others may go at any time.
constexpr bool KeepsBefore(TierId one, TierId other) {
  if (one.kind != other.kind) return IsMemory(one);
  return one.number < other.number;
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
