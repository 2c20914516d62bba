// What the kernel's io_uring can do for this process: rings are made, asked
// and closed again. For a report; MakeUringEngine decides by itself.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/machine.h"

namespace terrace {

// Everything of a UringReport but disabled_setting. Some milliseconds; up to 64
// MiB of memory are mapped and pinned meanwhile. Thread-safe.
UringReport ProbeUring();

// Has a ring pin these bytes for long, as a registered buffer, and lets them
// go: what it refuses that with ("ENOMEM (...)"); empty: it did. Where the
// memory is movable, its pages have left their node then. Unavailable: there is
// no ring, or none that may register anything, which says nothing of the bytes.
// Thread-safe.
absl::StatusOr<std::string> TryPin(absl::Span<std::byte> bytes);

}  // namespace terrace
