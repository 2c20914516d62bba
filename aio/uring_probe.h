// What the kernel's io_uring can do for this process: rings are made, asked
// and closed again. For a report; MakeUringEngine decides by itself.
#pragma once

#include "terrace/machine.h"

namespace terrace {

// Everything of a UringReport but disabled_setting. Some milliseconds; up to 64
// MiB of memory are mapped and pinned meanwhile. Thread-safe.
UringReport ProbeUring();

}  // namespace terrace
