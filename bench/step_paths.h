// A step over two paced devices of 3:1: how much of the sum of their rates it
// gets, and how soon again when one of them slows to half.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: --parameters (32M, fp32), --rounds (5), --gate (seconds to wait for a
// quiet machine, 10; 0: none), --json.
absl::Status RunStepPathsBenchmark(const Flags& flags);

}  // namespace terrace::bench
