// What a Runtime takes from a machine profile: how each of its paths begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "terrace/machine.h"

namespace terrace {

// Zeros: nothing is known.
struct PathTuning {
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  int64_t in_flight_bytes = 0;  // to begin with
  int64_t piece_bytes = 0;      // at most
};

struct MachineTuning {
  std::vector<PathTuning> paths;   // as they were asked for
  std::vector<TierProfile> tiers;  // likewise; rates of 0 are not known
  std::vector<std::string> stale;  // why some or all of them are zeros
};

// The best rate of each direction. In flight, to begin with, is what the slower
// direction moves in the latency that the queue aims at, within 512 KiB and its
// largest limit; it adapts from there. The piece is the largest that came
// within 10 % of the best in both directions.
PathTuning TuningOf(const PathProfile& profile);

// Of the profile in `file`, for this machine. Nothing is measured, no path is
// written to. `tiers`: far memory and persistent memory. Another machine,
// kernel or processor: no path or tier is known; another drive, or a path or
// tier that was not measured: that one is not. Errors as of ReadProfile.
absl::StatusOr<MachineTuning> ReadTuning(
    const std::string& file, const std::vector<std::string>& paths,
    const std::vector<TierSpec>& tiers = {});

}  // namespace terrace
