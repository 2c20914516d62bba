#include "policies/placement.h"

#include <algorithm>
#include <cstddef>

namespace terrace {

double RoundTripRate(const PathPrior& path) {
  const double read = path.read_bytes_per_second;
  const double write = path.write_bytes_per_second;
  if (read <= 0 || write <= 0) return std::max({read, write, 0.0}) / 2;
  return 1 / (1 / read + 1 / write);
}

int ChoosePath(absl::Span<const PathLoad> paths, int64_t size_bytes) {
  int best = -1;
  double best_seconds = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].usable) continue;
    const double seconds = (static_cast<double>(paths[i].placed_bytes) +
                            static_cast<double>(size_bytes)) /
                           paths[i].bytes_per_second;
    if (best < 0 || seconds < best_seconds) {
      best = static_cast<int>(i);
      best_seconds = seconds;
    }
  }
  return best;
}

}  // namespace terrace
