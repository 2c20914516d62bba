// One tensor's life: its copies on the tiers, how often they are pinned, and
// the one transfer that is under way. Every transition checks what it can see
// of what it needs; what follows from it elsewhere (room, queues, files) is its
// caller's.
//
//   transition       needs                          then
//   GivePlace        no place below                 an empty place there
//   BeginFill        no copy there, a whole newest  a copy there, kFilling
//                    one elsewhere, nothing under
//                    way
//   Filled, Checked  kFilling; kChecking            kChecking; kWhole
//   BeginFill again  kChecking                      kFilling, in the same room
//   FillFailed       kFilling or kChecking          no copy there
//   BeginRead        whole and newest, no writer    it stays while the transfer
//   EndRead          being read                     to another tier reads it
//   BeginOverwrite   no copy there                  a copy there, kUndefined
//   Hold, Unhold     access allows it               pins +1, -1
//   Publish          the write pin                  generation + 1; the copy is
//                                                   whole, all others stale
//   BeginDrain       dirty and idle                 kSealing
//   BeginMove        kSealing                       kMoving; in place, the copy
//                                                   below is an empty place
//   Drained          kMoving or kLate               whole below; a second place
//                                                   becomes the place
//   EndDrain         a transfer out                 none, or kLate: dirty still
//   Drop             no pin, nothing under way      no copy there; what tiers
//                                                   refused is forgotten
//   Lose             no whole copy is left          DataLoss, for good
//   Restore          a tensor just made             as another runtime had it
//
// Mover only.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "runtime/tensor/copies.h"
#include "runtime/tensor/image_keeper.h"
#include "runtime/tensor/tier_fills.h"
#include "runtime/tensor/write_refusals.h"
#include "terrace/request.h"
#include "terrace/tensor.h"
#include "tiers/reservation.h"

namespace terrace {

// The transfer out of a working copy.
enum class Drain : uint8_t {
  kNone,
  kSealing,  // checksum and header are computed
  kMoving,
  kLate,  // past its deadline: the device may still read the copy
};

class Tensor : public Copies {
 public:
  // `fills`: where what it has is counted; `keeper`: told of each change. Both
  // outlive the tensor.
  Tensor(TensorSpec of, TensorId named, TierFills* fills = nullptr,
         ImageKeeper* keeper = nullptr)
      : spec(std::move(of)), id(named), fills_(fills), keeper_(keeper) {}

  const TensorSpec spec;
  const TensorId id;
  // What the places below had against the present contents.
  WriteRefusals refusals;
  int64_t customer = -1;  // the queue that asked for it last

  // Newest contents; 0: never written.
  uint64_t generation() const { return generation_; }
  const absl::Status& loss() const { return loss_; }

  bool write_pinned() const { return write_pinned_; }
  Drain drain() const { return drain_; }
  // The one under way; without one, the last.
  uint64_t transfer() const { return transfer_; }
  // The newest contents are whole below.
  bool Fetchable() const;
  // The whole copy of the newest contents elsewhere that is fetched from; null:
  // there is none, or the tensor is lost.
  const Copy* SourceFor(TierId to) const;
  // The working tier that keeps the newest contents; kNoTier: none has them.
  TierId KeptAt() const;
  // The copy there is newer than what is below it, and no writer has it.
  bool Dirty(TierId tier) const;
  // The copy there is not used, and nothing moves it.
  bool Idle(TierId tier) const {
    const Copy* const copy = at(tier);
    return copy != nullptr && copy->idle() && drain_ == Drain::kNone;
  }

  void GivePlace(Reservation place);
  // `room` is empty when the copy is fetched once more into the room it has.
  void BeginFill(TierId tier, Reservation room, uint64_t transfer);
  void Filled(TierId tier);
  void Checked(TierId tier);
  // The room that the copy had: a late device may still write there.
  Reservation FillFailed(TierId tier);
  void BeginRead(TierId tier);
  void EndRead(TierId tier);
  void BeginOverwrite(Reservation room);
  void Hold(TierId tier, Access access);
  void Unhold(TierId tier, Access access);
  void Publish(TierId tier);
  void BeginDrain(uint64_t transfer, TierId from = kDramTier);
  void BeginMove(bool in_place, uint64_t transfer);
  // `second` is empty for what was written in place.
  void Drained(Reservation second, uint64_t generation);
  void EndDrain(bool late);
  void Drop(TierId tier);
  void Lose(absl::Status why);
  // `place` and `room` as the image's copies have them, or empty.
  void Restore(const TensorImage& image, Reservation place, Reservation room);

  // What must hold between two turns of the mover: Internal, and the message
  // names the tensor.
  friend absl::Status CheckInvariants(const Tensor& tensor);

 private:
  // One whose part is out of the sums while it changes.
  class Change;
  friend class Change;

  Copy& get(TierId tier);

  TierFills* const fills_;
  ImageKeeper* const keeper_;
  uint64_t generation_ = 0;
  bool write_pinned_ = false;  // by the one pin or hold there is
  Drain drain_ = Drain::kNone;
  uint64_t transfer_ = 0;
  absl::Status loss_;
};

absl::Status CheckInvariants(const Tensor& tensor);

// Adds what the tensor has of each tier, so many times.
void CountFills(const Tensor& tensor, int64_t times, TierFills* fills);

// By which the order of uses knows it (prefetch/recorded_step.h).
inline TensorId KeyOf(const Tensor& tensor) {
  const int64_t number = tensor.spec.step_number;
  return number < 0 ? tensor.id : TensorId{-2 - number};
}

// Whether its newest contents may be fetched to that tier now.
inline bool MayBeFetched(const Tensor& tensor, TierId to) {
  return tensor.at(to) == nullptr && tensor.SourceFor(to) != nullptr &&
         !tensor.write_pinned() && tensor.drain() == Drain::kNone &&
         tensor.ArrivingAt() == kNoTier;
}

// Of what is whole below; 0: nothing.
inline uint64_t GenerationBelow(const Tensor& tensor) {
  const Copy* const below = tensor.resting();
  return below == nullptr ? 0 : below->generation;
}

// The newest contents are not at rest. Of a lost tensor nothing is kept: what a
// pin still shows of it goes with the pin.
inline bool IsNewerThanBelow(const Tensor& tensor) {
  return tensor.loss().ok() && tensor.generation() != GenerationBelow(tensor);
}
// Nor on a working tier that keeps them before this one, as memory does below a
// device. A whole copy here that nothing writes to is dirty then.
inline bool IsNewerThanBelow(const Tensor& tensor, TierId tier) {
  const TierId keeps = tensor.KeptAt();
  return IsNewerThanBelow(tensor) &&
         (keeps == kNoTier || !KeepsBefore(keeps, tier));
}

// Whether what another tier has is as new, also if nothing was ever written, or
// all is lost.
inline bool IsCurrentBeside(const Tensor& tensor, TierId tier) {
  const Copy* const other = tensor.SourceFor(tier);
  const bool is_beside = other != nullptr && IsWorkingTier(other->place.tier());
  return !IsNewerThanBelow(tensor) || is_beside;
}

inline bool Tensor::Dirty(TierId tier) const {
  return !write_pinned_ && Delivered(tier) && IsNewerThanBelow(*this, tier);
}

}  // namespace terrace
