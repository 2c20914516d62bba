// `terrace-bench tiers`: copies between DRAM and a tier, each way alone and
// both at once, beside the least that moves the same bytes; how long a demand
// waits beside copies and kernels (copy_demand.h); a step over paced tiers
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
//
// --tier TEXT: instead of all that, copies to and from this one: far:node2,
// pmem:/mnt/pmem0, nvme:/mnt/nvme0 (mapped_edge.h, disk_edge.h), of as many
// bytes as its budget, else --size; hbm:cuda:0=256MiB as `terrace-bench
// device`. --unsafe-media: an ordinary file may play persistent memory.
absl::Status RunTiersBenchmark(const Flags& flags);

}  // namespace terrace::bench
