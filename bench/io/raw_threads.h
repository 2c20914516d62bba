// The bound of the thread engine where there is no ring: each thread with its
// own system calls, nothing shared but a counter.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/io/io_load.h"

namespace terrace::bench {

absl::Status RunRawThreads(const std::vector<int>& fds, const Load& load,
                           absl::Span<std::byte> memory, int64_t piece_bytes,
                           int threads);

}  // namespace terrace::bench
