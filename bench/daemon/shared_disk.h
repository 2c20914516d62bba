// How jobs share a disk of a host's daemon: by their weights, with nothing left
// unused, and without waiting for one that floods.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

absl::Status RunDaemonLinks(const Flags& flags);

}  // namespace terrace::bench
