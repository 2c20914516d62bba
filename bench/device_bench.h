// `terrace-bench device`: copies between pinned DRAM and a GPU's tier, each way
// alone and both at once, beside raw cudaMemcpyAsync of the same pieces.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: --device (cuda:0; threads: some that play one), --size (256M: moved in
// a run, and held on both sides), --rounds (11), --gate (10: seconds that a run
// waits at most for a quiet moment; 0: no gate). Unavailable: no module, no
// driver, no device.
absl::Status RunDeviceBenchmark(const Flags& flags);

// The same of one device, with the other flags.
absl::Status MeasureDeviceCopies(const std::string& place, int64_t size_bytes,
                                 const Flags& flags);

}  // namespace terrace::bench
