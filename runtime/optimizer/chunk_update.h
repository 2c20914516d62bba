// The update of one chunk: what the executor does between a pin and its
// release. Split into ranges that may run at the same time; each range
// initialises (at the chunk's first use) and updates its elements, and the
// last one releases the pin.
//
// Made on the customer's thread, shared by the tasks of its ranges: hence the
// shared_ptr. The step's pointers must stay valid until the meter has counted
// every range.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/optimizer_kernels.h"
#include "runtime/optimizer/chunk_layout.h"
#include "terrace/optimizer.h"
#include "terrace/pin.h"

namespace terrace {

// What all chunks of a step share; constant while kernels run.
struct UpdateStep {
  AdamScalars scalars = {};
  float gradient_multiplier = 1;
  absl::Span<const ParameterData> parameters;
};

class ChunkUpdate {
 public:
  // `fresh`: the payload holds nothing yet; moments start from zero and the
  // master from the parameter. `ranges` >= 1 is how often RunRange will run.
  ChunkUpdate(const Chunk& chunk, Pin pin, bool fresh, const UpdateStep& step,
              int ranges);
  ChunkUpdate(const ChunkUpdate&) = delete;
  ChunkUpdate& operator=(const ChunkUpdate&) = delete;

  // Each of 0 .. ranges-1 once, on any thread. Returns true for the one that
  // ended last; the pin is then released.
  bool RunRange(int index);

 private:
  void UpdateSegment(const Segment& segment, int64_t begin, int64_t end);

  const Chunk& chunk_;
  Pin pin_;
  const bool fresh_;
  const UpdateStep& step_;
  const int ranges_;
  std::byte* const payload_;
  std::atomic<int> left_;
};

}  // namespace terrace
