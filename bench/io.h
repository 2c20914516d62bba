// `terrace-bench io`: what the I/O engine and its queue cost beside the least
// that moves the same bytes of the same file in the same process.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: path, size, rounds, engine, piece, window, json.
absl::Status RunIoBenchmark(const Flags& flags);

}  // namespace terrace::bench
