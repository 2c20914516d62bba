#include "base/memory_overlap.h"

#include <algorithm>
#include <vector>

namespace terrace {
namespace {

uintptr_t StartOf(const MemoryRange& range) {
  return reinterpret_cast<uintptr_t>(range.start);
}

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(
    absl::Span<const MemoryRange> ranges) {
  std::vector<size_t> order;
  order.reserve(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].size_bytes > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::make_pair(StartOf(ranges[a]), a) <
           std::make_pair(StartOf(ranges[b]), b);
  });
  // Where any two overlap, so do two neighbours: what lies between them starts
  // before the first one ends.
  for (size_t i = 1; i < order.size(); ++i) {
    const MemoryRange& before = ranges[order[i - 1]];
    const uintptr_t end =
        StartOf(before) + static_cast<uintptr_t>(before.size_bytes);
    if (StartOf(ranges[order[i]]) < end) {
      return std::minmax(order[i - 1], order[i]);
    }
  }
  return std::nullopt;
}

}  // namespace terrace
