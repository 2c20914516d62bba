#include "tiers/pmem/bad_ranges.h"

#include <algorithm>

#include "base/bytes.h"

namespace terrace {

std::vector<Extent> BadRangesWithin(const std::vector<Extent>& found,
                                    Extent usable) {
  std::vector<Extent> ranges;
  for (const Extent& bad : found) {
    const int64_t begin = std::max(bad.offset, usable.offset) - usable.offset;
    const int64_t end = std::min(bad.end(), usable.end()) - usable.offset;
    if (begin >= end) continue;
    const int64_t from = RoundDown(begin, kBlockBytes);
    const int64_t to = std::min(RoundUp(end, kBlockBytes), usable.size_bytes);
    ranges.push_back({from, to - from});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Extent& a, const Extent& b) {
    return a.offset < b.offset;
  });
  std::vector<Extent> merged;
  for (const Extent& range : ranges) {
    if (merged.empty() || range.offset > merged.back().end()) {
      merged.push_back(range);
      continue;
    }
    const int64_t end = std::max(merged.back().end(), range.end());
    merged.back().size_bytes = end - merged.back().offset;
  }
  return merged;
}

const Extent* FirstTouched(const std::vector<Extent>& ranges, Extent range) {
  if (range.size_bytes == 0) return nullptr;
  for (const Extent& bad : ranges) {
    if (bad.offset < range.end() && range.offset < bad.end()) return &bad;
  }
  return nullptr;
}

int64_t TotalBytes(const std::vector<Extent>& ranges) {
  int64_t bytes = 0;
  for (const Extent& range : ranges) bytes += range.size_bytes;
  return bytes;
}

}  // namespace terrace
