// How the space of a tier grows at its end: by what is needed, and a share more
// where there is room for that.
//
// Plain values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"

namespace terrace {

// What a tier's file or memory gets at its end.
struct Growth {
  int64_t offset = 0;       // its end now
  int64_t least_bytes = 0;  // without which there is no use in it
  int64_t bytes = 0;        // better: the next extents have room as well
};

// What may be had at once beyond the need.
inline constexpr int64_t kGrowthAheadBytes = 64 << 20;

// From `end_bytes` on, by whole blocks. `left_bytes`: at most, and no less than
// the need; `ahead_bytes`: at most beyond the need.
inline Growth GrowthBy(int64_t need_bytes, int64_t end_bytes,
                       int64_t left_bytes,
                       int64_t ahead_bytes = kGrowthAheadBytes) {
  constexpr int64_t kUnit = 1 << 20;
  // What growth may take beyond the need, as a share of what is there: few
  // calls for a large state, little waste for a small one.
  constexpr int64_t kShare = 16;
  const int64_t ahead = std::min(ahead_bytes, end_bytes / kShare);
  return {.offset = end_bytes,
          .least_bytes = need_bytes,
          .bytes = std::min(RoundUp(std::max(need_bytes, ahead), kUnit),
                            left_bytes)};
}

}  // namespace terrace
