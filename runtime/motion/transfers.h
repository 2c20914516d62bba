// What is under way between tiers: fetches, which are moved and then checked,
// and write-backs, which are sealed and then moved. What ends comes up as an
// Arrival. A transfer past its deadline keeps the room that the device may
// still touch; the tensor of a late fetch is free, and may be fetched again.
//
// Mover only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/messages/inbox.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transcript.h"
#include "runtime/tensor/tensor.h"
#include "tiers/memory/dram_tier.h"
#include "tiers/reservation.h"

namespace terrace {

// What became of a transfer, for its tensor.
struct Arrival {
  enum class Kind : uint8_t {
    kWhole,        // a copy is whole, its waiters may have it
    kFillFailed,   // no copy; `status` says why
    kLost,         // no copy anywhere: DataLoss
    kWritten,      // whole below
    kWriteFailed,  // dirty as before; `late`: the device may still read it
  };
  Kind kind = Kind::kWhole;
  Tensor* tensor = nullptr;
  Edge edge;
  absl::Status status;
  bool late = false;
  // Of a late fetch: what the device may still write to.
  const Reservation* late_room = nullptr;
  bool moved = false;  // written to another tier's place than before
};

// What a move tells of its edge, whatever becomes of the tensor.
struct MoveReport {
  Edge edge;
  absl::Status status;
  int64_t failures = 0;  // of the edge's end, when it was begun
  bool late = false;
  bool released = false;
};

struct TransferParts {
  Links* links = nullptr;
  Executor* executor = nullptr;
  std::shared_ptr<Inbox> inbox;
  DramTier* dram = nullptr;
  RestingTiers* resting = nullptr;
  Clock* clock = nullptr;
  Transcript* transcript = nullptr;  // null: none is written
  absl::Duration timeout;
};

class Transfers {
 public:
  explicit Transfers(TransferParts parts) : parts_(std::move(parts)) {}

  // Fetches the tensor's place below into `room`.
  void StartFill(Tensor& tensor, Reservation room, IoClass io_class);
  // Seals the memory copy for tier `to`, if it asks for that; an empty
  // `second`: in its place.
  void StartDrain(Tensor& tensor, TierId to, Reservation second);
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
  Extent DrainPlace(const Tensor& tensor) const;
  // What a late fetch from there into that room is waited for.
  absl::Status LateFetch(TierId from, const Reservation& room) const;
  // Room of late fetches that lies directly in memory, outside all windows.
  int64_t late_bytes() const { return late_bytes_; }
  int tasks() const { return tasks_; }  // of the executor
  // Second places of write-backs, by tier, for the books.
  int64_t second_bytes(TierId tier) const;

 private:
  struct Transfer {
    Tensor* tensor = nullptr;
    Edge edge;
    IoClass io_class = IoClass::kDemand;
    bool moving = false;      // not sealed or checked just now
    uint64_t generation = 0;  // read, or written
    int64_t failures = 0;
    int bad_checks = 0;
    Extent below;      // on the tier that is no memory
    Reservation room;  // a write-back's second place, or a late fetch's room
  };
  using Map = std::map<uint64_t, Transfer>;  // first begun, first

  const Transfer& Of(const Tensor& tensor) const;
  // A new tag, so that moves are in the order in which they began.
  Map::iterator Renumber(Map::iterator transfer);
  void Move(const Map::value_type& transfer);
  void StartCheck(Map::iterator transfer, uint64_t seal_id);
  void OnFilled(Map::iterator transfer, const Moved& moved,
                std::vector<Arrival>* arrivals);
  // The copy is whole.
  void EndFill(Map::iterator transfer, std::vector<Arrival>* arrivals);
  void OnDrained(Map::iterator transfer, const Moved& moved,
                 std::vector<Arrival>* arrivals);
  void Note(TranscriptEvent event, const Transfer& transfer,
            absl::StatusCode code) const;
  absl::Span<std::byte> BytesOf(const Tensor& tensor) const;

  const TransferParts parts_;
  Map transfers_;
  absl::flat_hash_map<const Tensor*, int> late_fills_;
  int64_t late_bytes_ = 0;
  uint64_t next_tag_ = 1;
  int tasks_ = 0;
};

}  // namespace terrace
