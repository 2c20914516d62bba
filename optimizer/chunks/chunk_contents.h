// What the payloads of chunks hold so far. Parameters get their state at their
// first gradient, or from a load, so a chunk may be written while some of its
// segments hold nothing yet.
//
// Plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "optimizer/chunks/chunk_layout.h"

namespace terrace {

// Of one segment, or-ed.
using Held = uint8_t;
inline constexpr Held kHoldsMoments = 1;
inline constexpr Held kHoldsMaster = 2;  // fp32 parameters need none: set
inline constexpr Held kHoldsAll = kHoldsMoments | kHoldsMaster;

struct ChunkContents {
  explicit ChunkContents(const Chunk& chunk) { Clear(chunk); }

  void Clear(const Chunk& chunk) {
    fresh = true;
    segments.assign(chunk.segments.size(), NothingOf(chunk));
  }
  void Forget(const Chunk& chunk, size_t segment) {
    segments[segment] = NothingOf(chunk);
  }
  static Held NothingOf(const Chunk& chunk) {
    return chunk.has_master() ? Held{0} : kHoldsMaster;
  }
  bool whole() const {
    return std::all_of(segments.begin(), segments.end(),
                       [](Held held) { return held == kHoldsAll; });
  }

  bool fresh = true;           // never written: the bytes mean nothing
  std::vector<Held> segments;  // as in the chunk
};

}  // namespace terrace
