// Which tensors are on a working tier, where, and which give room to which: the
// windows of the queues, and the residents outside them. It does no harm: no
// resident leaves for one that is needed later, and no slot is taken for a
// prefetch of what is needed later. A group that waits takes any slot that is
// free to take; a window that opens takes the room of residents. Mover only.
//
// A copy that leaves and is newer than what is below must be written back
// first: the caller hands it to the write-back at once. Below a device's memory
// is the host's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "prefetch/trace_planner.h"
#include "runtime/residency/resident_set.h"
#include "runtime/residency/windows.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "tiers/byte_tier.h"

namespace terrace {

// How the search for a place ended.
enum class Space : uint8_t {
  kFound,
  kWait,       // for what moves, or is pinned by others
  kWriteBack,  // nothing can be had before a write-back ends
  kOwnPins,    // only the queue's own pins are in the way
  kFailed,     // it will not come by itself
};

// What a range may have to wait for.
enum class RoomAwaits : uint8_t {
  kNoPins,  // only what is on its way
  kPins,    // and whatever has the room for now
};

struct FoundPlace {
  Space space = Space::kFailed;
  Reservation room;  // kFound
  // Of a write-back that failed, whose slot would have done.
  absl::Status failure;
  // kWriteBack: one that is being written back. kFound: whose copy gave way, if
  // one did.
  const Tensor* other = nullptr;
};

// Everything referenced outlives the residency.
struct TierResidencyParts {
  Tier* tier = nullptr;
  // The working tier below, where copies may go that leave; null: none is.
  const Tier* below = nullptr;
  const TensorTable* table = nullptr;
  const PinBook* pins = nullptr;
  const TracePlanner* planner = nullptr;
  std::unique_ptr<EvictionPolicy> eviction;
};

inline int64_t FreeBytes(const Tier& tier) {
  const TierUsage usage = tier.usage();
  return usage.capacity_bytes - usage.used_bytes;
}

class TierResidency final {
 public:
  explicit TierResidency(TierResidencyParts parts);

  // A place for an absent tensor: outside the windows while there is room, so
  // that it may stay, unless queues of bytes work there; else a slot of the
  // queue's window. `leaving`: what must be written back for it.
  FoundPlace FindPlace(int64_t queue, Window& window, Tensor& tensor,
                       std::vector<Tensor*>* leaving);
  // The same in the window alone. A prefetch takes nothing that is needed no
  // later than what it fetches.
  FoundPlace FindSlot(int64_t queue, Window& window, Tensor& tensor,
                      bool prefetch);
  // Room outside the windows, if there is any: the tensor is a resident from
  // here on, until GiveBack or Drop.
  Reservation FindRoom(Tensor& tensor);
  // The same while a window waits for room too.
  Reservation TakeRoom(Tensor& tensor);
  // What FindPlace found is not used.
  void GiveBack(const Tensor& tensor, Reservation room);
  // For as long as places are sought for the others of its group.
  void Keep(const Tensor& tensor) { kept_.push_back(&tensor); }
  void EndKeep() { kept_.clear(); }

  // Gives up a copy that is not used. The caller knows that it is not the only
  // one, or says so (Tensor::Lose).
  void Drop(Tensor& tensor);
  // The tensor has no copy here any more; `late`: the room that a device may
  // still write to, and why.
  void OnGone(const Tensor& tensor, const Reservation* late,
              const absl::Status& why);
  // Leaves at once when clean; true: after its write-back.
  bool Evict(Tensor& tensor);
  // It stays after all.
  void Stay(const Tensor& tensor) { residents_.SetLeaving(tensor, false); }
  // Null: outside all windows, or not here.
  const Window* WindowOf(const Tensor& tensor) const;
  // Goes down as soon as it is not used: in a window, or on its way out.
  bool GoesDown(const Tensor& tensor) const {
    return WindowOf(tensor) != nullptr || residents_.IsLeaving(tensor);
  }

  // There is somewhere to go: without it nothing dirty leaves.
  bool CanGoDown(const Tensor& tensor) const;

  // A range for a window; empty: there is none.
  Reservation FindRange(int64_t bytes);
  // Residents make room for one.
  void EvictForRange(int64_t bytes, std::vector<Tensor*>* leaving);
  // Whether room for one may come later: from what moves or whose queue is
  // closed, and with kPins by the ends of pins and of windows too.
  // `late_fetches`: late ones have room that they will give back.
  bool RangeMayCome(int64_t bytes, RoomAwaits awaits, bool late_fetches) const;
  // Those that are empty by now go.
  void CloseEmptyWindows();
  // An idle copy whose contents are elsewhere or can be written there.
  bool MayLeave(const Tensor& tensor) const;

  Tier& tier() const { return tier_; }
  TierId id() const { return id_; }
  Windows& windows() { return windows_; }
  const Windows& windows() const { return windows_; }
  ResidentSet& residents() { return residents_; }
  const ResidentSet& residents() const { return residents_; }
  int64_t evictions() const { return evictions_; }

 private:
  bool IsFree(const Tensor& tensor) const {
    const Copy* const copy = tensor.at(id_);
    return copy != nullptr && IsFree(tensor, *copy);
  }
  // The tensor's copy here may be given up.
  bool IsFree(const Tensor& tensor, const Copy& copy) const;
  // As PickVictims has it. Whether any of the room is free now.
  bool EvictSome(int64_t bytes, int64_t newcomer_use, bool must, int64_t sample,
                 std::vector<Tensor*>* leaving);

  Tier& tier_;
  const TierId id_;
  const Tier* const below_;
  const TensorTable& table_;
  const PinBook& pins_;
  const TracePlanner& planner_;
  ResidentSet residents_;
  Windows windows_;
  std::vector<const Tensor*> kept_;  // few: a group's
  int64_t evictions_ = 0;
};

}  // namespace terrace
