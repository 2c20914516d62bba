// The update of one chunk: what the executor does between a pin and its
// release. Split into ranges that may run at the same time; each range
// initialises (what the chunk does not hold yet) and updates its elements, and
// the last one releases the pin.
//
// Made on the customer's thread, shared by the tasks of its ranges: hence the
// shared_ptr. The step's pointers must stay valid until the meter has counted
// every range. Of a chunk that passes through a staging slot, the ranges run
// once it has arrived there, and the last one begins to copy its parameters
// back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer_kernels.h"
#include "optimizer/chunks/chunk_contents.h"
#include "optimizer/chunks/chunk_layout.h"
#include "optimizer/step/staging.h"
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

  // The chunk in its slot, before the first range and after the last; null: it
  // passes through none, or no longer does.
  StagedChunk* staged() const { return staged_.get(); }
  // Before any range has run: nothing was or will be updated.
  void GiveUp();
  // Each of 0 .. ranges-1 once, on any thread. Returns true for the one that
  // ended last; the pin is then released.
  bool RunRange(int index);
  // Its ranges have run, and its parameters are back: nothing of it is read any
  // more. By the thread that calls LeaveSlot.
  bool has_ended() const {
    return left_.load(std::memory_order_acquire) == 0 && staged_ == nullptr;
  }
  // The parameters are back, or will not be: the slot is free.
  void LeaveSlot() { staged_.reset(); }

  // What the chunk held before.
  void Restore(ChunkContents& contents) const;

 private:
  void UpdateRange(int index);
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
};

}  // namespace terrace
