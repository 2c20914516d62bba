// `terrace-bench step --path DIR`: a step of the offloaded optimizer on a real
// disk against what the disk gives to a raw loop that does nothing else.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// All state is on the disk and the budget is the optimizer's window, so that
// every step reads and writes all of it. Beside it, interleaved: a raw loop
// that reads as many bytes of one half of a file that was written before and
// writes as many into the other, with 8 MiB in flight over as much memory; and
// the step's compute alone, over resident chunks, as the bytes that it would
// keep up with.
//
// Flags: --path, --parameters (64M, fp32), --budget (percent of the state that
// the window may take, 10), --rounds (5), --threads (0: all), --gate (seconds
// to wait for a quiet machine, 10; 0: none), --json.
absl::Status RunStepOnDisk(const Flags& flags);

}  // namespace terrace::bench
