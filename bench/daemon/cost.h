// `terrace-bench daemon`: what a job's process pays for having its runtime in a
// host's daemon.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Beside a runtime of this process, over the same directory, in the same
// rounds: a step of the offloaded optimizer where (bytes / rate) / compute is 1
// and 2, both disks at one pace; and a fetch of a tensor that is in memory. And
// of the daemon alone: its own bytes for each of --tensors, and the processor's
// time while nothing happens for --idle seconds.
//
// Flags: --path (.), --parameters (16M, fp32), --rounds (5), --tensors (1M),
// --idle (10), --json.
absl::Status RunDaemonCost(const Flags& flags);

}  // namespace terrace::bench
