// terrace-bench offline: the bytes that farthest-next-use moves over a trace of
// uses, with the budget less what is reserved for motion, and with all of it.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

absl::Status RunOffline(const Flags& flags);

}  // namespace terrace::bench
