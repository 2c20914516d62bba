// The common end of every eviction policy: take candidates in its order until
// there is enough room.
#pragma once

#include <cstdint>
#include <vector>

#include "terrace/tensor.h"

namespace terrace {

struct RankedCandidate {
  TensorId tensor;
  int64_t size_bytes = 0;
  int64_t next_use = 0;    // the higher leaves first,
  int64_t last_touch = 0;  // then the lower, then the lower id
};

// Appends the first of `candidates`, best victim first, until their sizes
// reach `bytes`. If all of them together do not: all when `must`, else none.
// O(n + victims * log n).
void TakeVictims(int64_t bytes, bool must,
                 std::vector<RankedCandidate> candidates,
                 std::vector<TensorId>* victims);

}  // namespace terrace
