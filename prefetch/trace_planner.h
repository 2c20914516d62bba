// What comes next, by today's rule: every queue's next step asks for what its
// last one did, in that order. One thread at a time (the mover).
//
// Queues of bytes have one order together, and from the first of them on the
// other queues' accesses stand in it too. It counts bytes, so that next uses of
// several customers compare. A step of that order begins with the step of a
// queue that has begun one since the order's last step began: two optimizers,
// or one for each parameter, make one step with the model's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "prefetch/access_trace.h"
#include "prefetch/merged_trace.h"
#include "terrace/byte_queue.h"
#include "terrace/tensor.h"

namespace terrace {

class TracePlanner {
 public:
  void Open(int64_t queue);
  void Close(int64_t queue);
  // From here on there is a merged order.
  void Merge();

  void BeginStep(int64_t queue);
  void Forget(int64_t queue);
  // As AccessTrace's. `bytes`: those that it takes in memory.
  bool OnAccess(int64_t queue, TensorId tensor, bool stays = false,
                int64_t bytes = 1);
  // A use by a queue of bytes, in one of its lanes (terrace/byte_queue.h), of
  // what stands in the merged order by `key`; whether it was foreseen.
  bool OnUse(int64_t queue, int lane, TensorId key, int64_t bytes) {
    return merged_->OnUse(LaneOf(queue, lane), key, bytes);
  }

  // Null: queues of bytes have not been opened.
  const MergedTrace* merged() const { return merged_ ? &*merged_ : nullptr; }
  // Of the merged order; where there is none the position is 0 and the order
  // stays.
  int64_t position() const { return merged_ ? merged_->position() : 0; }
  uint64_t order() const { return merged_ ? merged_->order() : 0; }

  // Accesses from now until the first queue asks for the tensor, each by its
  // own; where there is a merged order, bytes used until then by that; in both
  // kUnknownUse when nothing says so.
  int64_t NextUse(TensorId tensor) const;
  // The queue's next `count` tensors, in order, without those that stayed in
  // memory in its last step; false: nothing says which.
  bool Upcoming(int64_t queue, int64_t count, std::vector<TensorId>* out) const;

 private:
  // The other queues' accesses are one lane.
  static constexpr int64_t kOtherQueues = -1;
  static int64_t LaneOf(int64_t queue, int lane) {
    return queue * kMostLanes + lane;
  }
  AccessTrace& Of(int64_t queue);
  void OnChanged(int64_t queue, const AccessTrace& trace);

  absl::node_hash_map<int64_t, AccessTrace> traces_;  // by queue
  // By queue, the traces that say what comes: few, and gone through for every
  // decision where there is no merged order.
  absl::btree_map<int64_t, const AccessTrace*> replaying_;
  std::optional<MergedTrace> merged_;
  // Queues whose step is part of the merged order's present one.
  absl::flat_hash_set<int64_t> begun_;
};

}  // namespace terrace
