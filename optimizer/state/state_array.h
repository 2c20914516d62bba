// The arrays of a chunk by the kind of state that they hold.
#pragma once

#include "optimizer/chunks/chunk_contents.h"
#include "optimizer/chunks/chunk_layout.h"
#include "terrace/optimizer.h"

namespace terrace {

// What a segment must hold for its elements of that kind to mean anything.
inline Held Needed(OffloadedOptimizer::StateKind kind) {
  return kind == OffloadedOptimizer::StateKind::kMaster ? kHoldsMaster
                                                        : kHoldsMoments;
}

// That of StateSpans or StateValues.
template <typename Spans>
auto& SpanOf(Spans& spans, OffloadedOptimizer::StateKind kind) {
  using Kind = OffloadedOptimizer::StateKind;
  return kind == Kind::kMaster        ? spans.master
         : kind == Kind::kFirstMoment ? spans.first_moment
                                      : spans.second_moment;
}

// In a chunk's payload; a chunk of fp32 parameters has no master.
inline float* ArrayOf(const Chunk& chunk, OffloadedOptimizer::StateKind kind,
                      void* payload) {
  using Kind = OffloadedOptimizer::StateKind;
  return kind == Kind::kMaster        ? chunk.master(payload)
         : kind == Kind::kFirstMoment ? chunk.first_moment(payload)
                                      : chunk.second_moment(payload);
}

}  // namespace terrace
