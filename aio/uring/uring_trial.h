// Whether the kernel lets this process use a ring, and not only have it:
// filters of system calls, as containers have them, may take io_uring_register
// or io_uring_enter alone away, or some of their operations.
//
// Thread-safe.
#pragma once

#include "absl/status/status.h"

namespace terrace {

// Makes a small ring with these flags, calls all that an engine calls, and
// closes it. Unavailable: "<call>: <errno>", of the first that was refused,
// with the errno in its payload (base/io_fault.h). What an older kernel
// does not know and what a limit forbids, an engine does without: it is no
// refusal.
absl::Status TryRing(unsigned setup_flags);

// The kernel refused that call: as above.
absl::Status RingRefusal(const char* call, int error);

// Whether a call that failed with this errno may succeed when it is made again.
bool IsPassing(int error);

}  // namespace terrace
