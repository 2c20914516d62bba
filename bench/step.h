// `terrace-bench step`: a step of the offloaded optimizer against the slower of
// its two parts, moving the bytes and computing.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// The device is memory, paced to at most 1 GB/s in each direction. A row sets
// (bytes / rate) / compute to one value by repeating the update pass, here
// only. Compute is measured in the same rounds: the same update passes,
// checksums and copies over resident chunks on the same pool. More than 1 % of
// completions late by over 1 ms void a row.
//
// Flags: --parameters (16M, fp32), --budget (percent of the state, 10),
// --rounds (5), --threads (0: all).
absl::Status RunStepBenchmark(const Flags& flags);

}  // namespace terrace::bench
