// The order in which one queue asked for tensors in one step, and where in it
// the present step stands. One thread at a time uses a trace (the mover).
//
// A step is recorded while it runs, and replayed in the next. A deviation moves
// the position: a tensor found further on in the trace (round its end, if need
// be) skips what lies between; one that the trace does not have leaves it where
// it is.
#pragma once

#include <cstdint>
#include <vector>

#include "prefetch/recorded_step.h"
#include "terrace/tensor.h"

namespace terrace {

class AccessTrace {
 public:
  // The recorded step becomes the one to replay; position 0. A step in which
  // nothing was asked for says nothing: the one before it is replayed again.
  void BeginStep();
  // Forgets what was recorded and what is replayed.
  void Forget();
  // An access in program order: records it and moves the position; whether it
  // was foreseen, which is that the replayed step has it. One that `stays` has
  // memory outside of windows, and had it before it was asked for.
  bool OnAccess(TensorId tensor, bool stays = false);

  bool has_replay() const { return !replay_.step.empty(); }
  // The next `count` tensors expected from the position on, in order, without
  // those that stayed; wraps round to the start of the step (a step follows a
  // step), once: never more than one step's worth. Replaces the contents of
  // `out`.
  void Upcoming(int64_t count, std::vector<TensorId>* out) const;
  // Accesses from now until `tensor` is expected, counted over the wrap (0: it
  // is the very next); policies/eviction.h's kUnknownUse when the trace does
  // not have it.
  int64_t NextUse(TensorId tensor) const;

 private:
  struct Recorded {
    RecordedStep step;
    std::vector<int64_t> coming;  // positions of those that did not stay
  };

  Recorded recording_;
  Recorded replay_;
  int64_t position_ = 0;  // in the replayed one
};

}  // namespace terrace
