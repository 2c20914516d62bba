// The copies of one tensor, one a tier: room that is its own, and what is whole
// there. Mover only.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "tiers/reservation.h"

namespace terrace {

enum class CopyState : uint8_t {
  kPlace,      // room below, with nothing whole in it
  kFilling,    // bytes are on their way in
  kChecking,   // they are compared with their header
  kUndefined,  // a writer has it and writes all of it
  kWhole,
};

struct Copy {
  Reservation place;
  uint64_t generation = 0;  // of what is whole there; 0: nothing
  int32_t pins = 0;         // pins, and holds of admitted groups
  CopyState state = CopyState::kPlace;
  // Transfers to another working tier that read it, late ones too.
  uint8_t reads = 0;

  // What may be pinned.
  bool delivered() const {
    return state == CopyState::kWhole || state == CopyState::kUndefined;
  }
  bool arriving() const {
    return state == CopyState::kFilling || state == CopyState::kChecking;
  }
  bool idle() const { return delivered() && pins == 0 && reads == 0; }
};

class Copies {
 public:
  // Null: no copy there.
  const Copy* at(TierId tier) const {
    for (const Copy& copy : copies_) {
      if (copy.place.tier() == tier) return &copy;
    }
    return nullptr;
  }
  // The copy, or the empty place, on a resting tier; null: none.
  const Copy* resting() const {
    for (const Copy& copy : copies_) {
      if (!IsWorkingTier(copy.place.tier())) return &copy;
    }
    return nullptr;
  }
  absl::Span<const Copy> all() const { return absl::MakeConstSpan(copies_); }
  // Whether a copy there may be pinned.
  bool Delivered(TierId tier) const {
    const Copy* const copy = at(tier);
    return copy != nullptr && copy->delivered();
  }
  bool Pinned(TierId tier) const {
    const Copy* const copy = at(tier);
    return copy != nullptr && copy->pins > 0;
  }
  // On any tier.
  int32_t pins() const {
    int32_t sum = 0;
    for (const Copy& copy : copies_) sum += copy.pins;
    return sum;
  }
  // On its way there, or being checked there.
  bool Arriving(TierId tier) const {
    const Copy* const copy = at(tier);
    return copy != nullptr && copy->arriving();
  }
  // Where it is so; kNoTier: nowhere.
  TierId ArrivingAt() const {
    for (const Copy& copy : copies_) {
      if (copy.arriving()) return copy.place.tier();
    }
    return kNoTier;
  }
  // A transfer to another working tier, late or not, reads one.
  bool being_read() const {
    for (const Copy& copy : copies_) {
      if (copy.reads > 0) return true;
    }
    return false;
  }
  // A copy, whatever its state, on a working tier.
  bool IsAtWork() const {
    for (const Copy& copy : copies_) {
      if (IsWorkingTier(copy.place.tier())) return true;
    }
    return false;
  }
  // On any working tier.
  bool delivered() const {
    for (const Copy& copy : copies_) {
      if (IsWorkingTier(copy.place.tier()) && copy.delivered()) return true;
    }
    return false;
  }

 protected:
  // Few: those on working tiers, and at most one place below.
  absl::InlinedVector<Copy, 2> copies_;
};

}  // namespace terrace
