// Reads ahead where queues of bytes work: what the merged order of all
// customers (trace_planner.h) has next, and is not in memory, comes there
// without a pin, so that who pushes it needs no read. It takes room that is
// free, or that residents leave which are used later than what comes; the pins
// that queues of bytes have of these are asked for back. Others leave only for
// what is used within so many bytes from now as are for motion: an eighth of
// the memory outside the windows, or, where four of the largest tensors are
// more, as much as these, up to a quarter. Room that is free takes what is used
// within half of that memory; so much is on its way or unused at a time, at
// most. Groups and windows that lack room come first.
//
// What waits for others to leave is planned: it comes in the order of its uses,
// each as soon as there is room. Room is made for all that is planned, so that
// the writes of those that leave and the reads of those that come run beside
// each other.
//
// A queue with slots pins what came for it where it is, and gives it back for
// nobody. So its tensors come only where as many pins as there are slots,
// wherever they lie, leave room for the largest tensor that a queue of bytes
// used. Elsewhere they come into their windows alone.
//
// What a queue of bytes at a device uses next comes in two levels, each with
// the limits of its own tier: from below to the first memory, and from a memory
// to the device. The second follows the first along the same order, and waits
// for what is on its way there.
//
// It looks further with each use, and never twice at the same one, so that a
// turn costs no more with many tensors than with few. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "prefetch/trace_planner.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_line.h"
#include "runtime/tensor/tensor_table.h"

namespace terrace {

// All outlive it.
struct ReadAheadParts {
  const TensorTable* table = nullptr;
  const TracePlanner* planner = nullptr;
  const WorkingTiers* working = nullptr;
  const Customers* customers = nullptr;
  Transfers* transfers = nullptr;
  WriteBack* write_back = nullptr;
  Admission* admission = nullptr;
  BytePins* pins = nullptr;
  bool enabled = true;
};

class ReadAhead {
 public:
  explicit ReadAhead(const ReadAheadParts& parts) : parts_(parts) {}

  // A queue of bytes uses it.
  void OnUse(const Tensor& tensor);
  // A pin outside the windows has ended: there may be room that was not there
  // before.
  void OnPinEnded() { EndWaits(); }
  // A copy is whole in a memory: it may go on to a device.
  void OnCame() { levels_.back().waits = false; }
  // Begins what can be begun now, but not at tiers where groups lack room.
  void Propose(const absl::flat_hash_set<TierId>& lacking,
               std::vector<QueueError>* errors);

 private:
  // What is to come to one tier. Until the next use, or end of a pin, no more
  // room is made where it waits, and none for free room in parts where it gave.
  struct Ahead {
    TensorLine planned;  // waits for room that is being made
    bool waits = false;
    bool gave_room = false;
    TensorLine unused;  // came, or is on its way
  };

  // How far a lane is, and how many of its uses from there on were looked at.
  struct Looked {
    int64_t position = 0;
    int64_t uses = 0;
  };
  // The use that comes first of those that were not looked at.
  struct Upcoming {
    LaneTrace::Expected use;
    Looked* looked = nullptr;
  };

  // To memories, and from there to devices.
  struct Level {
    bool to_devices = false;
    absl::flat_hash_map<int64_t, Looked> looked;  // by lane
    bool waits = false;  // for a use, the end of a pin, or an arrival
  };

  // What is missing until that use.
  struct Lack {
    int64_t bytes = 0;
    int64_t part_bytes = 0;  // in one part, as enough is free in several
    int64_t next_use = 0;
  };

  void EndWaits();
  void FollowOrder(const MergedTrace& merged);
  static std::optional<Upcoming> Next(const MergedTrace& merged, Level* level);
  void LookOn(const MergedTrace& merged, Level* level,
              const absl::flat_hash_set<TierId>& lacking,
              std::vector<QueueError>* errors);
  // The tensor that stands for that key now; null: there is none.
  Tensor* Find(TensorId key) const;
  // Of what is used so many bytes from now. `residency`: where it is to come;
  // null: it does not exist.
  bool IsFar(int64_t bytes, const TierResidency* residency) const;
  // Where the queue works that used it last; null: it is gone, or its tensors
  // come into its window alone.
  TierResidency* ResidencyOf(const Tensor& tensor) const;
  // Where its next leg on that level leads; null: there is none.
  TierResidency* GoalOf(const Tensor& tensor, const Level& level) const;
  // It is to come to the device from a memory, and is not there yet.
  bool IsBelow(const Tensor& tensor, const TierResidency& residency) const;
  // Whether pins of queues with slots may lie outside the windows there.
  bool TakesPins(const TierResidency& residency) const;
  // What is used later than that has nothing leave for it.
  int64_t MotionBytes(const TierResidency& residency) const;
  // It comes, is planned, or need not come. False: there is no room before
  // another use, or the end of a pin.
  bool Plan(Tensor& tensor, TierResidency& residency,
            std::vector<QueueError>* errors);
  // It is not there, and nothing speaks against a read.
  bool MayBeRead(const Tensor& tensor, const TierResidency& residency) const;
  // Whether what is planned is still to come there.
  bool MayCome(TensorId id, const TierResidency& residency) const;
  // Begins those that are planned, as far as there is room.
  void BeginPlanned(Ahead* ahead, TierResidency& residency);
  // For those that are planned: others may have taken their room, what was to
  // leave may have stayed, and what is free may be in parts.
  void MakeRoomAgain(Ahead* ahead, TierResidency& residency,
                     std::vector<QueueError>* errors);
  // False: there is no room, and nothing was done.
  bool TryBegin(Tensor& tensor, TierResidency& residency, TensorLine* unused);
  // Room that is on its way: what leaves, and pins that were asked for.
  int64_t ComingBytes(const TierResidency& residency) const;
  // Residents leave that are used later than `next_use`, for what is missing of
  // so many bytes: first those that nobody has pinned, which leave now, and if
  // these are too few, others as their pins end. Where all of the bytes are
  // free, but in parts, neighbours leave for `part_bytes` in one part, pinned
  // or not. False: as in Plan, and nothing was done.
  bool MakeRoom(int64_t bytes, int64_t part_bytes, int64_t next_use,
                TierResidency& residency,
                std::vector<QueueError>* errors) const;
  // Residents, also pinned ones, that are used later and have as much together;
  // none: they are too few.
  std::vector<Tensor*> PickVictims(const Lack& lack,
                                   TierResidency& residency) const;
  // The first ones that have left unused, or are used by now.
  void ForgetGone(TensorLine* unused, TierId tier) const;

  const ReadAheadParts parts_;
  // Of what is made anew in each step.
  absl::flat_hash_map<int64_t, TensorId> newest_;  // by key
  absl::flat_hash_map<TierId, Ahead> ahead_;
  uint64_t order_ = 0;  // that is looked at
  std::vector<Level> levels_ = {{}, {.to_devices = true}};
  int64_t largest_bytes_ = 0;  // that a queue of bytes used
};

}  // namespace terrace
