// Room for what queues of bytes ask for, on one tier, in one turn: residents
// leave for it, and pins are asked for back (byte_pins.h). All tensors of the
// tier are in one order for that (leaving_order.h), pinned or not. That no more
// may leave a turn finds out once, however many seek room. Mover only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"

namespace terrace {

// Who seeks room, until it has it.
struct RoomSeeker {
  uint64_t number = 0;     // that is nobody else's
  bool uses_pins = false;  // that end after it: it comes before all others
  int64_t made_bytes = 0;  // what residents left to it so far
};

class ByteRoom {
 public:
  // In the order of a group's tensors; empty: it has a place already.
  using Rooms = absl::InlinedVector<Reservation, 4>;

  // What leaves already is for those that seek first. Both outlive it.
  ByteRoom(TierResidency& residency, BytePins& pins)
      : residency_(residency),
        pins_(pins),
        leaving_bytes_(residency.residents().leaving_bytes()) {}

  // The holder of that pin waits, so that it cannot give it back.
  void AddWaiting(uint64_t token);
  // Whether all tensors that queues of bytes have pinned here are so, but for
  // those of a group, which make no room for the group.
  bool AllWaitBut(absl::Span<Tensor* const> tensors) const;
  // Whether a single tensor fits in no part, whatever leaves of what does not
  // wait.
  bool FitsNowhere(absl::Span<Tensor* const> tensors) const;

  // A range for each of the tensors that has none, or for none of them: then it
  // sees to it that as much comes as is missing, as far as it can. `leaving`:
  // what must be written back for it. `passing`: the tensors do not stay, they
  // pass through these ranges to a device.
  bool Find(absl::Span<Tensor* const> tensors, RoomSeeker* seeker, Rooms* rooms,
            std::vector<Tensor*>* leaving, bool passing = false);
  // What was found for those tensors is not used.
  void GiveBack(absl::Span<Tensor* const> tensors, Rooms* rooms) const;
  // What was made for a seeker that still waits is not for those that seek
  // after it, unless they use pins.
  void KeepFor(const RoomSeeker& seeker) { kept_bytes_ += seeker.made_bytes; }
  int64_t kept_bytes() const { return kept_bytes_; }
  // The second part of it, for a window: by asking for pins alone.
  void AskFor(int64_t bytes, uint64_t asker);
  // For the room of that one, if its pins may be asked for.
  void AskFor(Tensor& tensor, uint64_t asker);

  TierResidency& residency() const { return residency_; }

 private:
  int64_t FreeFor(const RoomSeeker& seeker) const;
  bool Take(absl::Span<Tensor* const> tensors, Rooms* rooms,
            bool passing) const;
  struct Want {
    int64_t missing_bytes = 0;
    int64_t part_bytes = 0;    // in one part, as enough is free in several
    bool has_leaving = false;  // some of what leaves already is for it
    uint64_t asker = 0;
  };
  // What is missing of so many bytes for a seeker that has so many free.
  Want WantOf(int64_t bytes, int64_t free_bytes, uint64_t asker);
  // Not of those `besides`, which the room is for. Returns what leaves for it.
  int64_t MakeRoom(const Want& want, absl::Span<Tensor* const> besides,
                   std::vector<Tensor*>* leaving);
  std::vector<Tensor*> PickVictims(const Want& want,
                                   absl::Span<Tensor* const> besides);
  void Ask(Tensor& tensor, uint64_t asker);
  bool MayAsk(const Tensor& tensor, const Copy& copy) const;

  TierResidency& residency_;
  BytePins& pins_;
  int64_t leaving_bytes_;  // that nobody in this turn waits for yet
  int64_t kept_bytes_ = 0;
  absl::flat_hash_set<const Tensor*> waiting_;
  // Once all were too few: those among which there may be more, as they were
  // somebody's own.
  std::optional<std::vector<Tensor*>> rest_;
  // So much comes together nowhere, whoever seeks it alone.
  int64_t no_part_bytes_ = INT64_MAX;
};

}  // namespace terrace
