// The update of one chunk: what the executor does between a pin and its
// release. Split into ranges that may run at the same time; each range
// initialises (what the chunk does not hold yet) and updates its elements, and
// the last one releases the pin.
//
// Made on the customer's thread, shared by the tasks of its ranges: hence the
// shared_ptr. The step's pointers must stay valid until the meter has counted
// every range. Of a chunk that passes through a staging slot, the ranges wait
// until it has arrived there, and the last one copies its parameters back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/optimizer_kernels.h"
#include "runtime/optimizer/chunks/chunk_contents.h"
#include "runtime/optimizer/chunks/chunk_layout.h"
#include "runtime/optimizer/step/staging.h"
#include "terrace/optimizer.h"
#include "terrace/pin.h"

namespace terrace {

// What all chunks of a step share; constant while kernels run.
struct UpdateStep {
  absl::Span<const AdamScalars> scalars;  // by parameter
  float gradient_multiplier = 1;
  absl::Span<const ParameterData> parameters;
  Staging* staging = nullptr;  // null: no parameter is on a device
};

// Into how many ranges each chunk is split: two for each thread when as many
// chunks as there are `slots` are updated at a time.
int RangesPerChunk(int parallelism, int slots);

class ChunkUpdate {
 public:
  // Of a segment with a gradient, moments that are not held start from zero
  // and a master from the parameter, as do the elements of a held one that the
  // parameter is not the cast of; a fresh payload is zero elsewhere.
  // `ranges` >= 1 is how often RunRange will run. `staged` is null of a chunk
  // whose parameters are all in CPU memory.
  ChunkUpdate(const Chunk& chunk, Pin pin, const ChunkContents& contents,
              const UpdateStep& step, int ranges,
              std::unique_ptr<StagedChunk> staged);
  ChunkUpdate(const ChunkUpdate&) = delete;
  ChunkUpdate& operator=(const ChunkUpdate&) = delete;

  // Each of 0 .. ranges-1 once, on any thread. Returns true for the one that
  // ended last; pin and slot are then released.
  bool RunRange(int index);

  // After the last range. An error to arrive: nothing was updated. An error to
  // return: the device's parameters lack the update.
  const absl::Status& arrived() const { return arrived_; }
  const absl::Status& returned() const { return returned_; }
  // What the chunk held before.
  void Restore(ChunkContents& contents) const;

 private:
  void UpdateRange(int index);
  void End();
  void UpdateSegment(size_t index, int64_t begin, int64_t end);
  // Where the parameter of segment `index` is, from the segment's start on.
  ParameterData DataOf(size_t index) const;
  void Initialise(size_t index, const AdamSpan& span) const;

  const Chunk& chunk_;
  Pin pin_;
  const bool fresh_;
  const std::vector<Held> held_;  // by segment; empty: all hold all
  const UpdateStep& step_;
  const int ranges_;
  std::byte* const payload_;
  std::atomic<int> left_;
  std::unique_ptr<StagedChunk> staged_;
  absl::Status arrived_;  // by the last range, as is the next
  absl::Status returned_;
};

}  // namespace terrace
