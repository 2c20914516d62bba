// `terrace-bench tiers`: copies between DRAM and a tier of memory, beside a
// raw loop of memcpy over the same pieces; and a step over paced tiers
// (step_tiers.h).
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: --size (256M: moved in a run; twice that is allocated), --rounds (11),
// --threads (0: rows with one and rows with all), --gate (10: seconds that a
// run waits at most for a quiet moment; 0: no gate), --parameters (32M, of the
// step), --path (/dev/shm: where a file plays persistent memory), --paced: the
// step alone.
absl::Status RunTiersBenchmark(const Flags& flags);

}  // namespace terrace::bench
