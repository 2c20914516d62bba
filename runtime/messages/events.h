// What ended on another thread that works for the mover: its executor's, or a
// tier's background.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "tiers/tier_events.h"

namespace terrace {

// A memory copy has its checksum and header, for a write.
struct Sealed {
  uint64_t transfer = 0;
};
// A memory copy was compared with its header, after a read.
struct Checked {
  uint64_t transfer = 0;
  absl::Status status;
};

using Event = std::variant<Sealed, Checked, Grown, Reclaimed, Removed>;

}  // namespace terrace
