// Which disk path a new extent goes to: the one that would finish writing
// everything placed on it first, weighted by its rate. One thread at a time.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace terrace {

// What was measured of a path before the job: its machine profile or pace.
struct PathPrior {
  double read_bytes_per_second = 0;  // 0: unknown
  double write_bytes_per_second = 0;
};

// Bytes per second that are read and written back again; 0: unknown. One
// direction that is unknown counts as the other.
double RoundTripRate(const PathPrior& path);

struct PathLoad {
  int64_t placed_bytes = 0;
  double bytes_per_second = 1;  // relative weight, > 0
  bool usable = true;           // not degraded, not full
};

// The index, or -1 when no path is usable. Ties go to the lowest index.
int ChoosePath(absl::Span<const PathLoad> paths, int64_t size_bytes);

}  // namespace terrace
