// `terrace-bench device-step`: updates of tensors that work in a GPU's memory,
// stay in DRAM as far as they fit, and rest on a disk; against what the disk
// and the link give to raw loops that do nothing else.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Nothing is computed: each tensor is pinned for an update and published, so
// that all that leaves the GPU is written. Beside it, interleaved: raw reads
// and writes of as many bytes of the disk, and as many bytes of the link in raw
// copies of both directions at once. At the end every tensor is read and
// compared with what it was filled with.
//
// Flags: --device (cuda:0; threads: threads of this machine play it), --path
// (.), --size (2G: of the tensors; a fifth of them fits the GPU's budget, a
// fifth DRAM's), --rounds (5), --gate (seconds to wait for a quiet machine, 10;
// 0: none), --json. Unavailable: no module, no driver, no device.
absl::Status RunStepOnDevice(const Flags& flags);

}  // namespace terrace::bench
