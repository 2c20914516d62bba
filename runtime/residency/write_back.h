// What is newer on a working tier than below: which of it goes down now, what a
// tier refused, and what waits for another try. Mover only.
//
// What a device has becomes a resident of memory where there is room; else it
// goes to a resting tier, as what memory has does, through a staging slot. Of a
// device where queues of bytes work it waits for room of memory that is made,
// among the groups that do (passage/memory_passage.h).
//
// The step that asked for a tensor hears of a write-back that failed, or the
// queue's next one, if the tensor is not written by then; it is tried again at
// the next BeginStep or OpenQueue.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "runtime/motion/transfers.h"
#include "runtime/residency/byte_room.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_placement.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {

// All outlive the write-back.
struct WriteBackParts {
  const WorkingTiers* working = nullptr;
  StagingRoom* staging = nullptr;
  Transfers* transfers = nullptr;
  WritePlacement* placement = nullptr;
  RestingTiers* resting = nullptr;
};

// What leaves a device and waits for room of memory.
struct Lowering {
  Tensor* tensor = nullptr;
  RoomSeeker seeker;       // its number: 0, until it was looked at
  bool is_served = false;  // in this look at all that seek room
};

class WriteBack {
 public:
  explicit WriteBack(WriteBackParts parts) : parts_(parts) {}

  // Its copy became dirty, or may go by now: it is looked at in Start.
  void OnDirty(Tensor& tensor) { dirty_.push_back(&tensor); }
  // Starts all that may go. Waiters for the same tensor were admitted before,
  // so what is still idle here is not wanted now.
  void Start(std::vector<QueueError>* errors);
  // At once: residents that leave, before anything else finds a place.
  void StartLeaving(std::vector<Tensor*>* leaving,
                    std::vector<QueueError>* errors);

  // Those that wait for room of memory, in their order.
  std::vector<Lowering>& lowering() { return lowering_; }
  // One of these was not looked at yet.
  bool has_new_lowering() const;
  // It is still to leave its device, and nothing uses it.
  bool MayComeDown(const Tensor& tensor) const;
  void ComeDownInto(Tensor& tensor, Reservation room);
  // To a resting tier, through that range of memory. False: it has no place
  // there, or waits for one; nothing, without a range.
  bool PassDown(Tensor& tensor, Reservation range,
                std::vector<QueueError>* errors);

  // A sealed tensor moves, unless a writer waits for it that it has not given
  // way to yet.
  void OnSealed(Tensor& tensor, bool writer_waits);
  // A writer waits: what was not issued of its move is cancelled, once, as a
  // writer that waits for something else too would else keep it from ever being
  // written.
  void Yield(Tensor& tensor);
  void EndYield(const Tensor& tensor) { yielded_.erase(&tensor); }
  // Nothing more goes down: the runtime closes, or the tensor goes.
  void GiveUpSealed(Tensor& tensor);
  void OnWritten(const Arrival& arrival);
  // A copy is whole, on another tier than the one that had it, and is the one
  // that keeps the newest contents from now on; or it is not, and why.
  void OnCameDown(const Arrival& arrival);
  void OnComeDownFailed(const Arrival& arrival, bool is_registered,
                        std::vector<QueueError>* errors);
  void OnWriteFailed(const Arrival& arrival, bool is_registered,
                     std::vector<QueueError>* errors);

  // Those that failed are tried again, and so are the tiers that refused.
  void RetryFailed();
  size_t failed() const { return failed_.size(); }
  // The next step of that queue hears of it, as no step is open now; -1: it
  // was heard.
  void SetUnsaid(const Tensor& tensor, int64_t queue);
  // The first error since the queue's last step that was not tried again.
  absl::Status TakeUnsaid(int64_t queue);
  // Which failed write-back, as an error, keeps a closed queue's window, or
  // room outside all.
  absl::Status Unwritten() const;
  void Forget(const Tensor& tensor);

 private:
  // False: it waits for room.
  bool StartOne(Tensor& tensor, std::vector<QueueError>* errors);
  // Into memory, if there is room outside the windows.
  bool ComeDown(Tensor& tensor);
  bool StartDown(Tensor& tensor, Reservation slot,
                 std::vector<QueueError>* errors);
  static void EndLeave(Tensor& tensor, TierResidency& residency);
  void GiveUp(Tensor& tensor, std::vector<QueueError>* errors);

  const WriteBackParts parts_;
  std::vector<Tensor*> dirty_;
  std::vector<Tensor*> looked_at_;  // in Start; keeps its memory
  std::vector<Lowering> lowering_;
  std::vector<Tensor*> failed_;
  // Of those: the queue whose next step begins with its error.
  absl::flat_hash_map<const Tensor*, int64_t> unsaid_;
  absl::flat_hash_set<const Tensor*> yielded_;
};

}  // namespace terrace
