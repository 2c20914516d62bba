// The update of one chunk: what the executor does between a pin and its
// release. Split into ranges that may run at the same time; each range
// initialises (what the chunk does not hold yet) and updates its elements, and
// the last one releases the pin.
//
// Made on the customer's thread, shared by the tasks of its ranges: hence the
// shared_ptr. The step's pointers must stay valid until the meter has counted
// every range.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer_kernels.h"
#include "runtime/optimizer/chunk_contents.h"
#include "runtime/optimizer/chunk_layout.h"
#include "terrace/optimizer.h"
#include "terrace/pin.h"

namespace terrace {

// What all chunks of a step share; constant while kernels run.
struct UpdateStep {
  absl::Span<const AdamScalars> scalars;  // by parameter
  float gradient_multiplier = 1;
  absl::Span<const ParameterData> parameters;
};

class ChunkUpdate {
 public:
  // Of a segment with a gradient, moments that are not held start from zero
  // and a master from the parameter; a fresh payload is zero elsewhere.
  // `ranges` >= 1 is how often RunRange will run.
  ChunkUpdate(const Chunk& chunk, Pin pin, const ChunkContents& contents,
              const UpdateStep& step, int ranges);
  ChunkUpdate(const ChunkUpdate&) = delete;
  ChunkUpdate& operator=(const ChunkUpdate&) = delete;

  // Each of 0 .. ranges-1 once, on any thread. Returns true for the one that
  // ended last; the pin is then released.
  bool RunRange(int index);

 private:
  void UpdateSegment(size_t index, int64_t begin, int64_t end);
  void Initialise(size_t index, const AdamSpan& span) const;

  const Chunk& chunk_;
  Pin pin_;
  const bool fresh_;
  const std::vector<Held> held_;  // by segment; empty: all hold all
  const UpdateStep& step_;
  const int ranges_;
  std::byte* const payload_;
  std::atomic<int> left_;
};

}  // namespace terrace
