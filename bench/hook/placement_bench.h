// What the allocator of placements costs tensors that are made outside of any
// scope, beside LibTorch's own, on the thread's own processor time.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace terrace::bench {

absl::Status RunAllocations(int64_t rounds, bool json);

}  // namespace terrace::bench
