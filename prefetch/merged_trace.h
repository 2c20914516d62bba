// The order in which several customers, on threads beside each other, used
// tensors in one step, and where in it the present step stands. It counts
// bytes, so that next uses of several customers compare. One thread at a time
// uses a trace (the mover).
//
// A step is recorded while it runs, and replayed in the next, in about the same
// order. A use that was passed over is late, and still expected, until the step
// is kNear uses beyond it; one that came early is over. The longer a use is
// late, the later it is expected.
//
// Customers need not keep pace with each other as they did in the step before:
// updates beside forward run ahead of it, or with it. So the step may be at
// several places of the order at a time, each with a cursor. After kAstray uses
// in a row, near each other and in their order, which no cursor has near, there
// is one more; a cursor that nothing follows for a while goes. A tensor is
// expected by the cursor that comes to it first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "prefetch/recorded_step.h"
#include "terrace/tensor.h"

namespace terrace {

// A use as the replayed step has it.
struct ExpectedUse {
  TensorId tensor;
  bool is_over = false;  // it came before its turn
};

class MergedTrace {
 public:
  // The recorded step becomes the one to replay, from its start on. A step in
  // which nothing was used says nothing: the one before it is replayed again.
  void BeginStep();
  // A use by any of the customers: records it and moves a cursor; whether it
  // was foreseen, which is that the replayed step has it. Several of a tensor
  // in a row are one. `bytes`: those that it takes in memory.
  bool OnUse(TensorId tensor, int64_t bytes);

  bool has_replay() const { return !replay_.empty(); }
  // The one that stands `count` uses from the first cursor on, round the end;
  // none: that is a step's worth or more.
  std::optional<ExpectedUse> Expected(int64_t count) const;
  // Bytes used from now until `tensor` is expected, counted over the end of the
  // step (0: it is the very next); policies/eviction.h's kUnknownUse when the
  // trace does not have it.
  int64_t NextUse(TensorId tensor) const;
  // Bytes of the replayed step that the present one is through with: as a
  // tensor is not used, the sum of this and its next use stays about the same
  // until this has passed that sum.
  int64_t position() const { return passed_bytes_; }
  // Uses before the first cursor.
  int64_t uses() const { return cursors_.front().position; }
  // While it is the same both only grow.
  uint64_t order() const { return order_; }

 private:
  struct Cursor {
    int64_t position = 0;   // in the replayed step; at its end after all of it
    int64_t followed = -1;  // by the use of that number in the recorded one
  };
  struct Match {
    Cursor* cursor = nullptr;  // null: no cursor has the use near
    int64_t position = 0;
  };

  void Restart();
  void Follow(const Match& match);
  Match FindNear(const RecordedStep::Positions& positions);
  // The first of the tensor's uses near the cursor or behind that is not over;
  // none: it is in the next step.
  std::optional<int64_t> NextFor(
      const Cursor& cursor, const RecordedStep::Positions& positions) const;
  void FollowAstray(const RecordedStep::Positions& positions);
  void DropIdle();
  bool is_over(int64_t position) const {
    return is_over_[static_cast<size_t>(position)];
  }

  RecordedStep recording_;
  RecordedStep replay_;
  std::vector<bool> is_over_;  // of the replayed one's uses
  absl::InlinedVector<Cursor, 4> cursors_{Cursor()};  // never empty
  int64_t passed_bytes_ = 0;                          // by all cursors
  Cursor astray_;            // behind the last use that no cursor had near
  int64_t astray_uses_ = 0;  // in a row
  bool is_endless_ = false;
  uint64_t order_ = 0;
};

}  // namespace terrace
