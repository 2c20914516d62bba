// `terrace-bench adam`: the optimizer's kernels against the speed of memory,
// measured in the same run.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: --parameters (48M: with 20 bytes each, several times the last cache),
// --rounds (15), --threads (0: a part with one and a part with all).
absl::Status RunAdamBenchmark(const Flags& flags);

}  // namespace terrace::bench
