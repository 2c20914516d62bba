// The order in which customers used tensors in one step, and where in it the
// present step stands: one queue's order, or the merged order of several. One
// thread at a time uses a trace (the mover).
//
// A step is recorded while it runs, and replayed in the next. A deviation moves
// the position: a tensor found further on in the trace (round its end, if need
// be) skips what lies between; one that the trace does not have leaves it where
// it is. Where in a step each tensor stands is noted while it is recorded, so
// that a step begins as soon with many tensors as with few.
//
// A tensor stands in the trace by its key: its id, or, where tensors are made
// anew in each step, a number below zero that it has in every step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "terrace/tensor.h"

namespace terrace {

// What tells one kind of customer from another.
struct AccessTraceOptions {
  // Uses, and so next uses, are counted in bytes; else each counts 1.
  bool in_bytes = false;
  // Several uses of a tensor in a row are one.
  bool joins_repeats = false;
  // A use that the replayed step has only after more than so many others, or
  // round its end, is not followed: the step has left its order there for a
  // while. INT64_MAX: every use is followed, round the end too.
  int64_t most_passed = INT64_MAX;
  // A step of so many uses more than four times the last one's is none, as of a
  // customer that never ends one: nothing is expected until the next step.
  int64_t most_more_uses = INT64_MAX;
};

class AccessTrace {
 public:
  explicit AccessTrace(const AccessTraceOptions& options = {})
      : options_(options) {}

  // The recorded step becomes the one to replay; position 0. A step in which
  // nothing was asked for says nothing: the one before it is replayed again.
  void BeginStep();
  // Forgets what was recorded and what is replayed.
  void Forget();
  // A use in program order: records it and moves the position; whether it was
  // foreseen, which is that the replayed step has it. One that `stays` has
  // memory outside of windows, and had it before it was asked for. `bytes`:
  // those that it takes in memory, where the trace counts bytes.
  bool OnAccess(TensorId tensor, bool stays = false, int64_t bytes = 1);

  bool has_replay() const { return !replay_.accesses.empty(); }
  // The next `count` tensors expected from the position on, in order, without
  // those that stayed; wraps round to the start of the step (a step follows a
  // step), once: never more than one step's worth. Replaces the contents of
  // `out`.
  void Upcoming(int64_t count, std::vector<TensorId>* out) const;
  // The one that is expected after `count` others, round the end; none: that is
  // a step's worth or more.
  std::optional<TensorId> Expected(int64_t count) const;
  // Uses from now until `tensor` is expected, or their bytes, counted over the
  // wrap (0: it is the very next); policies/eviction.h's kUnknownUse when the
  // trace does not have it.
  int64_t NextUse(TensorId tensor) const;
  // Uses of the replayed step up to now, or their bytes. While order() is the
  // same the position only grows, and a tensor that is not used keeps the sum
  // of its next use and the position until the position has passed it.
  int64_t position() const { return Before(position_); }
  int64_t uses() const { return position_; }
  uint64_t order() const { return order_; }

 private:
  // Ascending; few tensors are asked for more often in a step.
  using Positions = absl::InlinedVector<int64_t, 2>;
  struct Step {
    std::vector<TensorId> accesses;
    absl::flat_hash_map<int64_t, Positions> positions;  // in those
    std::vector<int64_t> coming;  // positions of those that did not stay
    // Where bytes are counted: those of the accesses up to each, it included.
    std::vector<int64_t> bytes;
  };

  int64_t size() const { return static_cast<int64_t>(replay_.accesses.size()); }
  bool follows_all() const { return options_.most_passed == INT64_MAX; }
  bool IsEndless() const;
  void Follow(const Positions& positions);
  // Of the replayed step's accesses before that position.
  int64_t Before(int64_t position) const;

  const AccessTraceOptions options_;
  Step recording_;
  Step replay_;
  int64_t position_ = 0;  // in the replayed one; at its end after all of it
  bool is_endless_ = false;
  uint64_t order_ = 0;
};

}  // namespace terrace
