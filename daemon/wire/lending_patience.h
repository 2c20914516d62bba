// How long who asks for memory waits for other jobs to lend it, by the daemon,
// and so for its answer.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

// What they lend is written to their disks first, at least at 256 MiB/s.
inline absl::Duration LendingPatience(int64_t bytes) {
  return absl::Seconds(20) +
         absl::Seconds(static_cast<double>(bytes) / (256 << 20));
}

}  // namespace terrace
