#include "tiers/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace terrace {
namespace {

bool IsPowerOfTwo(int64_t value) {
  return value > 0 && (value & (value - 1)) == 0;
}

// Bytes from `offset` to the next multiple of `alignment`.
int64_t Padding(int64_t offset, int64_t alignment) {
  const int64_t past = offset & (alignment - 1);
  return past == 0 ? 0 : alignment - past;
}

}  // namespace

ExtentAllocator::ExtentAllocator(int64_t capacity_bytes, int64_t granularity)
    : capacity_(capacity_bytes), granularity_(granularity) {
  TERRACE_CHECK(IsPowerOfTwo(granularity));
  // Room for a size to be rounded up without overflow.
  TERRACE_CHECK(capacity_bytes >= 0 &&
                capacity_bytes <= INT64_MAX - granularity);
  if (capacity_ > 0) AddFree(0, capacity_);
}

absl::StatusOr<Extent> ExtentAllocator::Allocate(int64_t size_bytes,
                                                 int64_t alignment) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an extent of ", size_bytes, " bytes"));
  }
  if (!IsPowerOfTwo(alignment)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an alignment of ", alignment, ", no power of two"));
  }
  const std::optional<Extent> extent = TryAllocate(size_bytes, alignment);
  if (extent.has_value()) return *extent;
  return absl::ResourceExhaustedError(
      absl::StrCat("no free range of ", size_bytes, " bytes aligned to ",
                   alignment, ": largest ", largest_free_bytes(), ", free ",
                   free_bytes(), " of ", capacity_));
}

std::optional<Extent> ExtentAllocator::TryAllocate(int64_t size_bytes,
                                                   int64_t alignment) {
  TERRACE_CHECK(size_bytes > 0 && IsPowerOfTwo(alignment));
  if (size_bytes > capacity_) return std::nullopt;
  const int64_t size = size_bytes + Padding(size_bytes, granularity_);
  // The first that fits is the smallest that does. Only an alignment beyond
  // the granularity can make this look at more than one.
  for (auto it = by_size_.lower_bound({size, 0}); it != by_size_.end(); ++it) {
    const auto [free_size, free_offset] = *it;
    const int64_t padding = Padding(free_offset, alignment);
    if (padding > free_size - size) continue;
    const Extent extent{free_offset + padding, size};
    RemoveFree(free_.find(free_offset));
    if (padding > 0) free_[free_offset] = padding;
    if (padding > 0) by_size_.insert({padding, free_offset});
    const int64_t rest = free_size - padding - size;
    if (rest > 0) free_[extent.end()] = rest;
    if (rest > 0) by_size_.insert({rest, extent.end()});
    allocated_[extent.offset] = size;
    used_ += size;
    return extent;
  }
  return std::nullopt;
}

void ExtentAllocator::Withhold(Extent range) { TERRACE_CHECK(TryTake(range)); }

bool ExtentAllocator::TryTake(Extent range) {
  const bool is_range = range.offset >= 0 && range.size_bytes > 0 &&
                        range.size_bytes <= capacity_ &&
                        Padding(range.offset, granularity_) == 0 &&
                        Padding(range.size_bytes, granularity_) == 0;
  if (!is_range) return false;
  auto around = free_.upper_bound(range.offset);
  if (around == free_.begin()) return false;
  const auto [offset, size_bytes] = *--around;
  const int64_t end = offset + size_bytes;
  if (range.offset > end - range.size_bytes) return false;
  RemoveFree(around);
  if (range.offset > offset) AddFree(offset, range.offset - offset);
  if (end > range.end()) AddFree(range.end(), end - range.end());
  allocated_[range.offset] = range.size_bytes;
  used_ += range.size_bytes;
  return true;
}

std::optional<Extent> ExtentAllocator::LastFreeIn(const Extent& range) const {
  auto found = free_.lower_bound(range.end());
  if (found == free_.begin()) return std::nullopt;
  --found;
  const int64_t begin = std::max(found->first, range.offset);
  const int64_t end = std::min(found->first + found->second, range.end());
  if (begin >= end) return std::nullopt;
  return Extent{begin, end - begin};
}

void ExtentAllocator::Free(Extent extent) {
  const auto found = allocated_.find(extent.offset);
  TERRACE_CHECK(found != allocated_.end());
  TERRACE_CHECK(found->second == extent.size_bytes);
  allocated_.erase(found);
  used_ -= extent.size_bytes;
  AddFree(extent.offset, extent.size_bytes);
}

void ExtentAllocator::Grow(int64_t size_bytes) {
  TERRACE_CHECK(size_bytes > 0 &&
                size_bytes <= INT64_MAX - granularity_ - capacity_);
  const int64_t offset = capacity_;
  capacity_ += size_bytes;
  AddFree(offset, size_bytes);
}

int64_t ExtentAllocator::largest_free_bytes() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

Extent ExtentAllocator::WithFreeBeside(Extent range) const {
  const auto next = free_.lower_bound(range.end());
  const bool touches = next != free_.end() && next->first == range.end();
  const int64_t end = range.end() + (touches ? next->second : 0);
  int64_t offset = range.offset;
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) offset = previous->first;
  }
  return {offset, end - offset};
}

int64_t ExtentAllocator::free_tail_bytes() const {
  if (free_.empty()) return 0;
  const auto last = std::prev(free_.end());
  return last->first + last->second == capacity_ ? last->second : 0;
}

void ExtentAllocator::CheckInvariants() const {
  TERRACE_CHECK(free_.size() == by_size_.size());
  int64_t offset = 0;
  int64_t used = 0;
  bool after_free = false;
  auto free = free_.begin();
  auto allocated = allocated_.begin();
  // Free and allocated ranges tile the pool, and no two free ones touch.
  while (offset < capacity_) {
    const bool is_free = free != free_.end() && free->first == offset;
    TERRACE_CHECK(offset % granularity_ == 0);
    if (is_free) {
      TERRACE_CHECK(!after_free && free->second > 0);
      TERRACE_CHECK(by_size_.count({free->second, offset}) == 1);
      offset += (free++)->second;
    } else {
      TERRACE_CHECK(allocated != allocated_.end());
      TERRACE_CHECK(allocated->first == offset && allocated->second > 0);
      used += allocated->second;
      offset += (allocated++)->second;
    }
    after_free = is_free;
  }
  TERRACE_CHECK(offset == capacity_ && used == used_);
  TERRACE_CHECK(free == free_.end() && allocated == allocated_.end());
}

void ExtentAllocator::AddFree(int64_t offset, int64_t size_bytes) {
  const Extent added{offset, size_bytes};
  const Extent whole = WithFreeBeside(added);
  if (whole.offset < added.offset) RemoveFree(free_.find(whole.offset));
  if (whole.end() > added.end()) RemoveFree(free_.find(added.end()));
  free_[whole.offset] = whole.size_bytes;
  by_size_.insert({whole.size_bytes, whole.offset});
}

void ExtentAllocator::RemoveFree(std::map<int64_t, int64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

}  // namespace terrace
