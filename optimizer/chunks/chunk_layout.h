// How the optimizer state of a list of parameters is cut into chunks.
//
// The parameters of one dtype are laid end to end, in their order, and cut
// into chunks; each chunk is one tensor of the Runtime and covers one or more
// segments: a range of a parameter. A chunk never mixes dtypes, so all of its
// elements have the same arrays, which lie one behind the other in the
// payload, each 64-byte aligned:
//
//   fp32 parameters:            m | v          (8 bytes an element)
//   16-bit parameters: master | m | v          (12 bytes an element)
//
// Pure functions and plain values; thread-safe. Counts are elements unless a
// name says bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"

namespace terrace {

// Chunks but the last of a dtype hold a multiple of this many elements.
inline constexpr int64_t kChunkGranule = 4096;
// The least chunk_bytes, which include kTensorHeaderBytes: one granule of 12
// bytes an element and the header, rounded up.
inline constexpr int64_t kSmallestChunkBytes = 64 << 10;

struct Segment {
  int parameter = 0;             // index in the list of parameters
  int64_t parameter_offset = 0;  // where it starts in the parameter
  int64_t chunk_offset = 0;      // and in the chunk
  int64_t count = 0;             // > 0
};

struct Chunk {
  DType dtype = DType::kFloat32;  // of its parameters
  int64_t first = 0;              // its place in the whole state
  int64_t count = 0;
  std::vector<Segment> segments;  // in order, without gaps

  bool has_master() const { return dtype != DType::kFloat32; }
  int arrays() const { return has_master() ? 3 : 2; }
  // Elements from one array to the next: whole cache lines.
  int64_t stride() const { return (count + 15) / 16 * 16; }
  int64_t payload_bytes() const { return arrays() * stride() * 4; }
  // Where the arrays start in a payload.
  float* master(void* payload) const {
    return has_master() ? static_cast<float*>(payload) : nullptr;
  }
  float* first_moment(void* payload) const {
    return static_cast<float*>(payload) + (arrays() - 2) * stride();
  }
  float* second_moment(void* payload) const {
    return static_cast<float*>(payload) + (arrays() - 1) * stride();
  }
};

// Elements of a full chunk of at most `chunk_bytes`, header included.
int64_t ChunkElements(DType dtype, int64_t chunk_bytes);

// The chunks of the parameters from index `first` on, apart from those of the
// parameters before. Empty parameters have no segments. chunk_bytes >=
// kSmallestChunkBytes.
std::vector<Chunk> CutIntoChunks(absl::Span<const ParameterSpec> parameters,
                                 int64_t chunk_bytes, size_t first = 0);

struct ChunkPlan {
  OptimizerPlan plan;         // of all chunks
  std::vector<Chunk> chunks;  // the new ones
};

// Chooses chunk size and window for a budget. Every byte of window is one less
// for chunks that stay. So it is a quarter of the budget, or half of it where
// that is no more than a tenth of the state beyond the budget, and between them
// that tenth; at most 128 MiB (what a path of several GB/s has in flight at a
// latency of tens of milliseconds). It has at least eight slots; chunks shrink
// for that down to 1 MiB. A smaller budget gets a window of half of it in four
// slots or more, one that is smaller still three slots of the smallest chunks.
//
// With `existing` chunks of the first parameters, cuts those from index `first`
// on: the existing stay as they are and the window must hold them as well. No
// elements: no chunks and no window.
//
// InvalidArgument: bad parameters or options. ResourceExhausted: a budget (or
// options.window_bytes) below the minimum, which the message names.
absl::StatusOr<ChunkPlan> PlanChunks(absl::Span<const ParameterSpec> parameters,
                                     const OptimizerOptions& options,
                                     int64_t host_budget_bytes,
                                     absl::Span<const Chunk> existing = {},
                                     size_t first = 0);

// The same plan without the chunks, in the time of a walk over the parameters
// and no memory.
absl::StatusOr<OptimizerPlan> PlanSizes(
    absl::Span<const ParameterSpec> parameters, const OptimizerOptions& options,
    int64_t host_budget_bytes);

}  // namespace terrace
