// How long a demand waits beside bulk copies, and beside kernels as well: what
// virtual time (tests/tiers/mapped/copy_latency_test.cc) cannot tell, as there
// nothing computes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/gate.h"
#include "bench/report/document.h"

namespace terrace::bench {

// A GiB of write-backs of 8 MiB from DRAM to memory that plays a tier, all
// begun at the start, and all the time a demand of 1 MiB the other way, at most
// one at a time, at random moments; the same beside AdamUpdate on as many
// threads. p99 of the demands, from Begin to Poll; told, no bar.
absl::StatusOr<Section> MeasureCopyDemand(int64_t size_bytes, int threads,
                                          int rounds, Gate& gate);

}  // namespace terrace::bench
