// How fast bytes go between memory and a mapped tier: both directions of an
// edge, in the pieces that a copy between tiers has.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "tiers/medium.h"

namespace terrace {

struct MediumRates {
  double read_bytes_per_second = 0;  // to memory
  double write_bytes_per_second = 0;
};

// Takes the medium for itself: all of it but bad ranges is written once and
// holds noise then. Each direction is measured for `time`, and at least three
// times; each time every thread of the executor, as far as there are pieces for
// all, moves four pieces of 1 MiB between the medium and memory of its own that
// its caches do not hold; the median counts. Takes 16 MiB of memory for each
// thread. Blocks; one thread.
//
// InvalidArgument: no time. ResourceExhausted: the medium has no whole good
// piece, or there is no memory. Else the first error of a piece, as the medium
// has it.
absl::StatusOr<MediumRates> MeasureMedium(Medium& medium, Executor& executor,
                                          absl::Duration time);

}  // namespace terrace
