// The slots of one queue: a range of memory that is the queue's alone. A slot
// is reserved for one tensor's copy at a time; one that a late fetch may still
// write to is no tensor's until the device lets go. Mover only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/motion/staging_room.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"

namespace terrace {

class Window final : public Reserver {
 public:
  // Slots of `stride` bytes each, headers included, all of `range`, on `tier`.
  // `changed`: where a closed window says so; it outlives the window.
  // `staging`: of a device's window.
  Window(TierId tier, Reservation range, int64_t stride, int slots,
         std::vector<Window*>* changed, StagingRoom::Lease staging = {})
      : staging_(std::move(staging)),
        range_(std::move(range)),
        tier_(tier),
        stride_(stride),
        slots_(static_cast<size_t>(slots)),
        changed_(*changed) {}

  TierId id() const override { return tier_; }
  const Extent& room() const { return range_.extent(); }
  int64_t size_bytes() const { return room().size_bytes; }
  int64_t stride() const { return stride_; }
  int slots() const { return static_cast<int>(slots_.size()); }

  bool taken(int slot) const { return at(slot).taken; }
  // Null: free, or a late fetch's.
  Tensor* owner(int slot) const { return at(slot).owner; }
  // Why a taken slot is no tensor's.
  const absl::Status& late(int slot) const { return at(slot).late; }

  Reservation Take(int slot, Tensor& owner, int64_t size_bytes);
  // The slot of that range is a late fetch's from here on.
  void Disown(const Extent& extent, absl::Status why);
  void Free(Extent extent) override {
    slots_[IndexOf(extent)] = {};
    NoteChange();
  }
  int SlotOf(const Extent& extent) const {
    return static_cast<int>(IndexOf(extent));
  }

  // Its queue is closed: it goes when the last slot is empty.
  bool closing() const { return closing_; }
  // Its range is beside the tier's budget.
  bool is_beyond() const { return is_beyond_; }
  void SetBeyond() { is_beyond_ = true; }
  void Close() {
    closing_ = true;
    NoteChange();
  }
  bool empty() const;
  // A slot is empty, or its copy is not used any more. Of an open window nobody
  // needs to know.
  void NoteChange();
  void ForgetChange() { is_changed_ = false; }

 private:
  struct Slot {
    Tensor* owner = nullptr;
    bool taken = false;
    absl::Status late;
  };
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  size_t IndexOf(const Extent& extent) const {
    return static_cast<size_t>((extent.offset - range_.extent().offset) /
                               stride_);
  }

  const StagingRoom::Lease staging_;
  const Reservation range_;
  const TierId tier_;
  const int64_t stride_;
  std::vector<Slot> slots_;
  std::vector<Window*>& changed_;
  bool closing_ = false;
  bool is_beyond_ = false;
  bool is_changed_ = false;  // it stands in `changed_`
};

}  // namespace terrace
