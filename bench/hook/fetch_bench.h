// What an operation waits for a tensor that is away, in memory or below.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace terrace::bench {

// Prints, for models of 2,000 and of 16,000 tensors of 4 KiB each, the time
// that a forward over all of them takes a tensor where all were evicted, beside
// one where all are there, and the same with a window for a quarter of them,
// where each is read and has another leave: median and range of so many rounds
// in turn. And the messages to the mover that a fetch and its end take.
absl::Status RunFetches(int64_t rounds, bool json);

}  // namespace terrace::bench
