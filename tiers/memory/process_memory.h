// What the kernel says about memory: of this process's mappings and of the
// machine. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace terrace {

// Bytes of the mappings that lie in `area` which huge pages back, by
// /proc/self/smaps; 0 when it cannot be read.
int64_t HugeBytes(absl::Span<const std::byte> area);

// AvailableMemoryBytes of terrace/machine.h with the pseudo file systems
// mounted elsewhere, for tests: `proc` holds meminfo and self/cgroup,
// `cgroup` the tree.
int64_t AvailableMemoryBytesUnder(const std::string& proc,
                                  const std::string& cgroup);

}  // namespace terrace
