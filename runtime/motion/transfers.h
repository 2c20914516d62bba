// What is under way between tiers: fetches, which are moved and then checked,
// and write-backs, which are sealed and then moved. What ends comes up as an
// Arrival. A transfer past its deadline keeps the room that the device may
// still touch; the tensor of a late fetch is free, and may be fetched again.
//
// Between a device and a resting tier it has two legs, through a staging slot
// in memory, where it is checked, or sealed, as if it rested there. A fetch
// waits for its slot here, those that are asked for first; a write-back is
// begun with one. The device's copy stays until the second leg has ended.
//
// Mover only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "runtime/messages/inbox.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/staging_room.h"
#include "runtime/motion/tensor_transfer.h"
#include "runtime/motion/transcript.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"
#include "tiers/tier_list.h"

namespace terrace {

// What became of a transfer, for its tensor.
struct Arrival {
  enum class Kind : uint8_t {
    kWhole,        // a copy is whole, its waiters may have it
    kFillFailed,   // no copy there; `status` says why, and is not DataLoss
    kLost,         // no copy anywhere: DataLoss
    kWritten,      // whole below
    kWriteFailed,  // dirty as before; `late`: the device may still read it
  };
  Kind kind = Kind::kWhole;
  Tensor* tensor = nullptr;
  // All of its way; of a write-back that failed in its first leg that one.
  Edge edge;
  absl::Status status;
  bool late = false;
  // What the source had is gone for good.
  bool source_is_gone = false;
  // Of a late fetch: what the device may still write to.
  const Reservation* late_room = nullptr;
  bool moved = false;  // written to another tier's place than before
  // What came from a resting tier to a device through room of memory is whole
  // there too.
  Reservation passed;
};

// What a move tells of its edge, whatever becomes of the tensor.
struct MoveReport {
  Edge edge;
  // Where a write-back was to go that ends in its first leg.
  TierId given_up = kNoTier;
  absl::Status status;
  int64_t failures = 0;  // of the edge's end, when it was begun
  bool late = false;
  bool released = false;
};

struct TransferParts {
  Links* links = nullptr;
  Executor* executor = nullptr;
  std::shared_ptr<Inbox> inbox;
  const TierList* tiers = nullptr;
  StagingRoom* staging = nullptr;
  RestingTiers* resting = nullptr;
  Clock* clock = nullptr;
  Transcript* transcript = nullptr;  // null: none is written
  absl::Duration timeout;
};

class Transfers {
 public:
  explicit Transfers(TransferParts parts) : parts_(std::move(parts)) {}

  // Fetches the fastest newest copy that lies elsewhere into `room`. What has
  // two legs passes through `passing`, or else waits for a staging slot.
  void StartFill(Tensor& tensor, Reservation room, IoClass io_class,
                 Reservation passing = {});
  // Seals the copy that keeps the newest contents for tier `to`, if it asks for
  // that; an empty `second`: in its place. A device's comes down through
  // `slot`.
  void StartDrain(Tensor& tensor, TierId to, Reservation second,
                  Reservation slot = {});
  // The tensor that is sealed: it moves, or is given up.
  Tensor& OnSealed(const Sealed& event);
  const Tensor& TensorOf(uint64_t transfer) const {
    return *transfers_.at(transfer).tensor;
  }
  // `failures` comes back in the move's report.
  void StartMove(Tensor& tensor, int64_t failures);
  // Returns where it was to go.
  TierId GiveUp(Tensor& tensor);

  MoveReport OnMoved(const Moved& moved, std::vector<Arrival>* arrivals);
  // Fetches that waited for staging begin, or fail: no slot will come, or they
  // are cancelled.
  void StartWaiting(std::vector<Arrival>* arrivals);
  bool has_waiting() const { return !waiting_.empty(); }
  // `again`: what is wrong is fetched once more; `matters`: the tensor is
  // still registered.
  void OnChecked(const Checked& event, bool again, bool matters,
                 std::vector<Arrival>* arrivals);

  void Promote(const Tensor& tensor, IoClass io_class);
  void Cancel(const Tensor& tensor);
  void CancelAll();

  // Whether anything of it is under way, late or not.
  bool Has(const Tensor& tensor) const;
  // Where a write-back goes, or a late one may still write.
  TierId DrainTier(const Tensor& tensor) const;
  // Its transfer, which is under way.
  const TensorTransfer& Of(const Tensor& tensor) const;
  // What a late fetch into that room is waited for.
  absl::Status LateFetch(const Reservation& room) const;
  // Room of late fetches that lies directly on a working tier, outside all
  // windows.
  int64_t late_bytes(TierId tier = kDramTier) const {
    const auto found = late_bytes_.find(tier);
    return found == late_bytes_.end() ? 0 : found->second;
  }
  int tasks() const { return tasks_; }  // of the executor
  // Second places of write-backs, by tier; in the first memory the room that
  // fetches were begun with to pass through. For the books.
  int64_t second_bytes(TierId tier) const;

 private:
  using Map = std::map<uint64_t, TensorTransfer>;  // first begun, first

  // A new tag, so that moves are in the order in which they began.
  Map::iterator Renumber(Map::iterator transfer);
  void Move(Map::value_type& transfer);
  void Seal(const Map::value_type& transfer);
  void StartCheck(Map::iterator transfer, uint64_t seal_id);
  void OnFilled(Map::iterator transfer, const Moved& moved,
                std::vector<Arrival>* arrivals);
  // The copy is whole.
  void EndFill(Map::iterator transfer, std::vector<Arrival>* arrivals);
  void GoOn(Map::iterator transfer, std::vector<Arrival>* arrivals);
  void FailFill(Map::iterator transfer, const Moved& moved,
                std::vector<Arrival>* arrivals);
  void OnDrained(Map::iterator transfer, const Moved& moved,
                 std::vector<Arrival>* arrivals);

  const TransferParts parts_;
  Map transfers_;
  std::vector<uint64_t> waiting_;  // for staging, in their order
  absl::flat_hash_map<const Tensor*, int> late_fills_;
  absl::flat_hash_map<TierId, int64_t> late_bytes_;  // by working tier
  uint64_t next_tag_ = 1;
  int tasks_ = 0;
};

}  // namespace terrace
