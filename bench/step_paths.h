// A step over two paced devices of 3:1: how much of the sum of their rates it
// gets, and how soon again when one of them slows to half.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

absl::Status RunStepPathsBenchmark(const Flags& flags);

}  // namespace terrace::bench
