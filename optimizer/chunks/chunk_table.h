// The chunks of an optimizer: how each is laid out, the tensor that holds it,
// what its payload holds so far, and which of them a parameter is in.
//
// One thread at a time. Chunks and contents stay where they are until more are
// appended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "optimizer/chunks/chunk_contents.h"
#include "optimizer/chunks/chunk_layout.h"
#include "terrace/optimizer.h"
#include "terrace/tensor.h"

namespace terrace {

// Where a range of a parameter meets one chunk.
struct ChunkPiece {
  int chunk;
  size_t segment;        // in the chunk
  int64_t chunk_offset;  // elements
  int64_t range_offset;  // from the start of the range
  int64_t count;
};

class ChunkTable {
 public:
  // tensors[i] holds chunks[i], which is fresh. They are of new parameters:
  // from here on there are `parameters`.
  void Append(std::vector<Chunk> chunks, absl::Span<const TensorId> tensors,
              size_t parameters);
  // No chunk holds anything.
  void Clear();

  int size() const { return static_cast<int>(chunks_.size()); }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const Chunk& chunk(int index) const {
    return chunks_[static_cast<size_t>(index)];
  }
  TensorId tensor(int index) const {
    return tensors_[static_cast<size_t>(index)];
  }
  // Kept up by steps and by writes of state.
  ChunkContents& contents(int index) {
    return contents_[static_cast<size_t>(index)];
  }
  const ChunkContents& contents(int index) const {
    return contents_[static_cast<size_t>(index)];
  }

  // What the chunk holds once a step with these gradients has updated it.
  void SetUpdated(int index, absl::Span<const ParameterData> parameters);
  // Those with a segment whose parameter has a gradient.
  std::vector<bool> WithGradient(
      absl::Span<const ParameterData> parameters) const;

  // Those with a segment of these parameters, as the last parameter of each
  // comes in this order.
  std::vector<int> InOrder(absl::Span<const int> parameters) const;
  // The same as the first parameter of each comes.
  std::vector<int> InOrderOfFirst(absl::Span<const int> parameters) const;
  // All that a parameter is in.
  std::vector<int> ChunksOf(int parameter) const;
  // Of a parameter with elements; the rest of it is in those behind.
  int first_chunk(int parameter) const {
    return first_chunks_[static_cast<size_t>(parameter)];
  }
  // The pieces of `count` elements of a parameter from `offset` on, in order.
  std::vector<ChunkPiece> Pieces(int parameter, int64_t offset,
                                 size_t count) const;

 private:
  std::vector<Chunk> chunks_;
  std::vector<TensorId> tensors_;        // by chunk
  std::vector<ChunkContents> contents_;  // by chunk
  std::vector<int> first_chunks_;        // by parameter; of an empty one: any
};

}  // namespace terrace
