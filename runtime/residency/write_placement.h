// Which resting tier a tensor is given its place on, and which one its next
// write-back goes to: by rates that are measured as moves end, and by what each
// tier can be trusted with.
//
// A write-back rewrites its whole extent, so it may go to an extent of another
// tier, a second place. Until it is whole the first stays the tensor's: a
// tensor always has room below it, and the only good copy, that in memory, is
// given up by neither. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "policies/path_placement.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transfers.h"
#include "runtime/tensor/tensor_life.h"
#include "terrace/stats.h"
#include "tiers/reservation.h"

namespace terrace {

// Where a write-back goes to.
struct WriteTarget {
  enum class Room : uint8_t {
    kFound,
    kWait,  // a tier grows that may take it, or another write finds out
            // whether a tier does
    kNone,
  };
  Room room = Room::kNone;
  TierId tier = kNoTier;
  Reservation second;  // empty: in the tensor's own place
};

class WritePlacement {
 public:
  // Everything referenced outlives it; `priors`: one for each tier, or none.
  WritePlacement(RestingTiers& tiers, const Links& links,
                 absl::Span<const PathPrior> priors);

  // A move has ended, for good or as late.
  void OnMoved(const MoveReport& report);
  void OnRelocated(TierId to) { ++at(to).relocated; }
  // What moved since the last such call.
  void Measure();

  // Changes nothing but what it reserves. Where none can be trusted all are
  // asked that did not refuse the tensor yet, its own place first: one of them
  // may do better by now.
  WriteTarget ChooseTarget(const Tensor& tensor);
  // What was chosen is not written.
  void GiveUp(TierId tier) { placement_.OnGivenUp(PathOf(tier)); }
  // Comes back in the report of the move that begins now.
  int64_t failures(TierId tier) const {
    return placement_.failures(PathOf(tier));
  }

  // For a new tensor: of the slowest kind of tier that will do, so that what is
  // faster is for what is written; kNoTier: none will. `refused` in the order
  // of the tiers.
  TierId ChooseHome(const PathFlags& refused, int64_t size_bytes) const;
  // A write that finds out about a tier on trial is under way.
  bool trying() const { return placement_.trying(); }
  // What each tier has against it, which names it; the first one's errno.
  absl::Status NoneIsUsable() const;
  void SetWriteError(TierId tier, absl::Status error) {
    at(tier).write_error = std::move(error);
  }

  // From here on each tier that refuses may be tried once more, but late ones.
  void TryAgain();

  // Everything but the number of the tier's tensors.
  TierStats StatsOf(TierId tier) const;

 private:
  // What was counted of a tier's moves.
  struct Meter {
    IoPathStats last;   // when rates were last measured
    int64_t reads = 0;  // that ended since
    int64_t writes = 0;
    int64_t relocated = 0;     // tensors that came from another tier's place
    absl::Status write_error;  // of the last write that failed
  };

  int PathOf(TierId tier) const { return tiers_.IndexOf(tier); }
  Meter& at(TierId tier) { return meters_[static_cast<size_t>(PathOf(tier))]; }
  const Meter& at(TierId tier) const {
    return meters_[static_cast<size_t>(PathOf(tier))];
  }
  // A device that answers nothing has no rate yet that would say so.
  void NoteUnanswered(int64_t size_bytes);
  TierState StateOf(TierId tier) const;

  RestingTiers& tiers_;
  const Links& links_;
  Placement placement_;
  std::vector<Meter> meters_;
};

}  // namespace terrace
