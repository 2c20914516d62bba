// The order in which one lane of a step uses tensors: uses that follow each
// other, as those of a model's operations, or of the updates beside them. Where
// a use stands among the uses of all lanes is told by the bytes that these had
// used before it, its place. One thread at a time uses a trace (the mover).
//
// A step is recorded while it runs, and replayed in the next, in about the same
// order. A use that was passed over is late, and still expected, until the lane
// is kNear uses beyond it; one that came early is over. After kAstray uses in a
// row, near each other and in their order, that are not near the lane's
// position, the lane goes on there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "prefetch/recorded_step.h"
#include "terrace/tensor.h"

namespace terrace {

class LaneTrace {
 public:
  // The recorded step becomes the one to replay, from its start on. It took
  // `bytes` of all lanes.
  void BeginStep(int64_t bytes);

  // What a use did to the order.
  enum class Followed : uint8_t {
    kNothing,  // the replayed step does not have it there
    kUse,      // of the replayed step
    kJump,     // the lane goes on elsewhere
  };
  // A use at that place of the recorded step. Several of a tensor in a row are
  // one.
  Followed OnUse(TensorId tensor, int64_t place, int64_t bytes);

  bool IsLast(TensorId tensor) const {
    return !recording_.step.empty() &&
           recording_.step.accesses.back() == tensor;
  }
  bool Has(TensorId tensor) const {
    return replay_.step.Find(tensor) != nullptr;
  }
  int64_t size() const { return replay_.step.size(); }
  // Uses of the replayed step before the position, and their bytes.
  int64_t position() const { return position_; }
  int64_t passed_bytes() const { return replay_.step.BytesBefore(position_); }
  // Of the use at the position; after all of them the step's end.
  int64_t place() const { return PlaceOf(position_); }
  // Behind the use that was followed last; 0: none was.
  int64_t followed_place() const { return followed_place_; }
  // Where the present step was as the lane was used last.
  int64_t used_place() const { return used_place_; }

  // The one that stands `count` uses from the position on, round the end; none:
  // that is the lane's step or more.
  struct Expected {
    TensorId tensor;
    int64_t bytes = 0;  // between the position's place and its own
  };
  std::optional<Expected> ExpectedAt(int64_t count) const;
  // Bytes between the position's place and the next use of the tensor, counted
  // over the end of the step; none: the lane does not have it.
  std::optional<int64_t> BytesUntil(TensorId tensor) const;

 private:
  using Positions = RecordedStep::Positions;
  struct Recorded {
    RecordedStep step;
    std::vector<int64_t> places;  // of its accesses
  };

  int64_t PlaceOf(int64_t position) const {
    return position < size() ? replay_.places[static_cast<size_t>(position)]
                             : step_bytes_;
  }
  int64_t PlaceBehind(int64_t position) const {
    return PlaceOf(position) + replay_.step.BytesBefore(position + 1) -
           replay_.step.BytesBefore(position);
  }
  bool is_over(int64_t position) const {
    return is_over_[static_cast<size_t>(position)];
  }
  // The first use that is near the position or behind it and not over; none:
  // it is in the next step.
  std::optional<int64_t> NextOf(const Positions& positions) const;
  void Follow(int64_t position);
  // Whether the tensor was used a short while ago: it is used once more.
  bool IsRepeated(const Positions& positions) const;
  Followed FollowAstray(const Positions& positions);

  Recorded recording_;
  Recorded replay_;
  int64_t step_bytes_ = 0;     // that the replayed step took of all lanes
  std::vector<bool> is_over_;  // of the replayed one's uses
  int64_t position_ = 0;
  int64_t followed_place_ = 0;
  int64_t used_place_ = 0;
  int64_t astray_ = 0;       // behind the last use that was not near
  int64_t astray_uses_ = 0;  // in a row
};

}  // namespace terrace
