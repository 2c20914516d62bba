// Whether things that are written at the same time share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/types/span.h"

namespace terrace {

struct MemoryRange {
  const void* start = nullptr;
  int64_t size_bytes = 0;
};

// The indices of two ranges that have a byte in common, the lower one first;
// nothing: there are no such two. An empty range has no bytes. n log n.
std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const MemoryRange> ranges);

}  // namespace terrace
