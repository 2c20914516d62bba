// Options in their long form: every budget, node and path as a tier. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "terrace/options.h"
#include "terrace/tier.h"

namespace terrace {

// Memory first, then a device's, far memory, persistent memory and disks, each
// in the order in which they were named; without Options::memory_paths.
// InvalidArgument: a tier beside a short form of its kind, no memory or two,
// two devices, a budget that is too small, an empty path or one that is named
// twice, a wrong node.
absl::StatusOr<std::vector<TierSpec>> TiersOf(const Options& options);

}  // namespace terrace
