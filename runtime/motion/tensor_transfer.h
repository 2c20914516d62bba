// One transfer under way, and the legs of its way: between a device and a
// resting tier there are two, through a staging slot in memory. Mover only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "aio/io_transfer.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"
#include "tiers/tier_list.h"
#include "tiers/transport.h"

namespace terrace {

constexpr bool IsOfDevice(Edge edge) {
  return IsDevice(edge.from) || IsDevice(edge.to);
}

struct TensorTransfer {
  Tensor* tensor = nullptr;
  Edge edge;  // of all of its way
  IoClass io_class = IoClass::kDemand;
  bool moving = false;      // not sealed or checked just now, nor waiting
  bool cancelled = false;   // of two legs: nothing more of it begins
  bool is_second = false;   // the leg that is under way
  uint64_t generation = 0;  // read, or written
  int64_t failures = 0;
  int bad_checks = 0;
  Extent below;         // on the resting tier
  Reservation room;     // a write-back's second place, or a late fetch's room
  Reservation staging;  // of two legs; a fetch waits for it
  bool passes = false;  // by room of memory that it was begun with

  bool fills() const { return IsWorkingTier(edge.to); }
  bool has_two_legs() const {
    return !IsMemory(edge.from) && !IsMemory(edge.to);
  }
  bool in_first_leg() const { return has_two_legs() && !is_second; }
  Edge leg() const {
    if (!has_two_legs()) return edge;
    return is_second ? Edge{kDramTier, edge.to} : Edge{edge.from, kDramTier};
  }
  // Where it has its bytes on an end of its leg.
  const Extent& on(TierId tier) const {
    if (!IsWorkingTier(tier)) return below;
    if (tier == kDramTier && has_two_legs()) return staging.extent();
    return tensor->at(tier)->place.extent();
  }
  // In memory: what is sealed, or checked.
  absl::Span<std::byte> bytes(const TierList& tiers) const {
    const TierId memory = NearEnd(leg());
    const Extent& extent = on(memory);
    return {tiers.at(memory).Address(extent),
            static_cast<size_t>(extent.size_bytes)};
  }
};

}  // namespace terrace
