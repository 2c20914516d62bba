// All windows of one working tier. One whose queue is closed stays until the
// last of its slots is empty. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/residency/window.h"
#include "tiers/reservation.h"

namespace terrace {

class Windows {
 public:
  explicit Windows(TierId tier) : tier_(tier) {}

  // All of `range`; stays where it is until it is closed and empty.
  Window* Open(Reservation range, int64_t stride, int slots,
               StagingRoom::Lease staging = {});
  // A slot for the tensor's copy, which is all of `range`, beside the budget.
  // It is no queue's, so that it goes as soon as it is empty.
  Reservation OpenBeyond(Reservation range, Tensor& tensor);
  // The slot that begins there, for the tensor's copy. Empty: there is none
  // that is free.
  Reservation TakeAt(const Extent& range, Tensor& tensor);
  void Close(Window& window);
  // A pin, or a transfer, of a copy there has ended; null: outside them all.
  void OnUsed(const Window* window);
  // A copy has gone, in a window or outside, that this queue asked for last.
  void NoteLoss(int64_t queue) {
    if (losers_.empty() || losers_.back() != queue) losers_.push_back(queue);
  }
  // The queues of which a loss was noted since the last call.
  std::vector<int64_t> TakeLosers() { return std::exchange(losers_, {}); }
  // Those closed that are empty go, once `leave` has dropped what may leave. It
  // looks only at what has changed since: many may wait for one pin each.
  void Sweep(absl::FunctionRef<void(const Window&)> leave);

  // That room is a late fetch's from here on, if it is a slot.
  void Disown(const Reservation& room, const absl::Status& why);

  // Nothing new becomes resident while another window waits for room.
  void HoldRoom(bool hold) { holds_room_ = hold; }
  bool holds_room() const { return holds_room_; }

  // Some wait for their slots.
  bool closing() const { return open_.size() + beyond_ < windows_.size(); }
  bool AnyClosing(absl::FunctionRef<bool(const Window&)> is) const;
  std::vector<Extent> ClosingRooms() const;
  // Of all, but for what is beyond the budget.
  std::vector<Extent> Rooms() const;
  int64_t size_bytes() const;
  int64_t open_bytes() const;  // of those not closed, and what is promised
  int64_t open_slots() const { return open_slots_; }
  int64_t open_count() const { return static_cast<int64_t>(open_.size()); }

  // To a queue of bytes, which has no range of its own.
  void Promise(int64_t bytes) { promised_bytes_ += bytes; }
  void EndPromise(int64_t bytes) { promised_bytes_ -= bytes; }
  int64_t promised_bytes() const { return promised_bytes_; }

 private:
  const TierId tier_;
  std::vector<Window*> changed_;  // those closed
  std::vector<int64_t> losers_;
  absl::flat_hash_set<std::unique_ptr<Window>> windows_;
  // Of these, few: those closed may be many, each for one pin.
  absl::flat_hash_set<const Window*> open_;
  bool holds_room_ = false;
  size_t beyond_ = 0;
  int64_t open_slots_ = 0;
  int64_t promised_bytes_ = 0;
};

}  // namespace terrace
