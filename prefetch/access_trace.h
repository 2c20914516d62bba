// The order in which a queue's customer asked for tensors in one step, and
// where in it the present step stands. One thread at a time (the mover).
//
// Recorded while a step runs, replayed in the next. A deviation moves the
// position: a tensor found further on in the trace (round its end, if need be)
// skips what lies between; one that the trace does not have leaves it where it
// is. Where in a step each tensor stands is noted while it is recorded, so that
// a step begins as soon with many tensors as with few.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "terrace/tensor.h"

namespace terrace {

class AccessTrace {
 public:
  // The recorded step becomes the one to replay; position 0. A step in which
  // nothing was asked for says nothing: the one before it is replayed again.
  void BeginStep();
  // Forgets what was recorded and what is replayed.
  void Forget();
  // A request in program order: records it and moves the position; whether it
  // was foreseen, which is that the replayed step has it. One that `stays` has
  // memory outside of windows, and had it before it was asked for.
  bool OnAccess(TensorId tensor, bool stays = false);

  bool has_replay() const { return !replay_.accesses.empty(); }
  // The next `count` tensors expected from the position on, in order, without
  // those that stayed; wraps round to the start of the step (a step follows a
  // step), once: never more than one step's worth. Replaces the contents of
  // `out`.
  void Upcoming(int64_t count, std::vector<TensorId>* out) const;
  // Accesses from now until `tensor` is expected, counted over the wrap (0: it
  // is the very next);
  // policies/eviction.h's kUnknownUse when the trace does not have it.
  int64_t NextUse(TensorId tensor) const;

 private:
  // Ascending; few tensors are asked for more often in a step.
  using Positions = absl::InlinedVector<int64_t, 2>;
  struct Step {
    std::vector<TensorId> accesses;
    absl::flat_hash_map<int64_t, Positions> positions;  // in those
    std::vector<int64_t> coming;  // positions of those that did not stay
  };

  Step recording_;
  Step replay_;
  int64_t position_ = 0;  // in the replayed one
};

}  // namespace terrace
