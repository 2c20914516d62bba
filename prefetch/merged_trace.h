// The order in which several customers used tensors in one step, and where in
// it the present step stands. It counts bytes, so that next uses of several
// customers compare. One thread at a time uses a trace (the mover).
//
// Customers need not keep pace with each other as they did in the step before:
// updates that ran before forward may run beside it in the next step. So uses
// that follow each other are a lane (lane_trace.h), each lane has a position of
// its own in the replayed step, and a use is followed in its lane alone. The
// step is as far as the place that any lane has come to. A lane whose next use
// is farther waits until then; one that is due, and is not used, comes later by
// what others use meanwhile.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_map.h"
#include "prefetch/lane_trace.h"
#include "terrace/tensor.h"

namespace terrace {

class MergedTrace {
 public:
  // The recorded step becomes the one to replay, from its start on; a lane that
  // it does not have is forgotten. A step in which nothing was used says
  // nothing: the one before it is replayed again.
  void BeginStep();
  // A use in that lane: records it; whether it was foreseen, which is that the
  // lane had it in the replayed step. `bytes`: those that it takes in memory.
  bool OnUse(int64_t lane, TensorId tensor, int64_t bytes);
  // Nothing is expected of these lanes any more.
  void DropLanes(int64_t first, int64_t end);

  // The lanes' keys, and what each of them is at.
  using Lanes = absl::btree_map<int64_t, LaneTrace>;
  const Lanes& lanes() const { return lanes_; }
  // The use that stands `count` uses from the lane's position on, with the
  // bytes used from now until then; none: that is the lane's step or more.
  std::optional<LaneTrace::Expected> Expected(const LaneTrace& lane,
                                              int64_t count) const;
  // Bytes used from now until `tensor` is expected, counted over the end of the
  // step (0: it is the very next); policies/eviction.h's kUnknownUse when the
  // trace does not have it.
  int64_t NextUse(TensorId tensor) const;
  // Bytes of the replayed step that the present one is through with: as a
  // tensor is not used, the sum of this and its next use stays about the same
  // until this has passed that sum.
  int64_t position() const { return passed_bytes_; }
  // While it is the same that only grows, and so do the lanes' positions; lanes
  // that change their pace much, or go on elsewhere, begin another one.
  uint64_t order() const { return order_; }

 private:
  // Bytes used from now until the lane's next use.
  int64_t BytesUntil(const LaneTrace& lane) const;
  void BeginOrder();
  void Clear();

  Lanes lanes_;
  int64_t recorded_bytes_ = 0;
  int64_t recorded_uses_ = 0;
  int64_t step_bytes_ = 0;  // of the replayed step
  int64_t step_uses_ = 0;   // likewise
  // A step has at most so many uses more than four times the last one's.
  int64_t most_more_uses_ = 64 << 10;
  int64_t reached_ = 0;       // the place that any lane has come to
  int64_t passed_bytes_ = 0;  // by all lanes
  int64_t lead_ = 0;          // of the place before these, as the order began
  bool is_endless_ = false;
  uint64_t order_ = 0;
};

}  // namespace terrace
