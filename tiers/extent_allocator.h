// Hands out ranges of an opaque pool: best fit with coalescing, all metadata
// outside. One thread at a time.
//
// Best fit over size-ordered free ranges (Wilson et al. 1995, "Dynamic Storage
// Allocation: A Survey", section 3.4); ties go to the lowest offset.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "tiers/extent.h"

namespace terrace {

class ExtentAllocator {
 public:
  // Sizes are rounded up to `granularity`, a power of two.
  explicit ExtentAllocator(int64_t capacity_bytes,
                           int64_t granularity = kBlockBytes);

  // InvalidArgument: size <= 0 or an alignment that is no power of two;
  // ResourceExhausted: no free range is large enough (both are named).
  absl::StatusOr<Extent> Allocate(int64_t size_bytes, int64_t alignment = 1);
  // For what has another place to ask where there is none: no reason is given.
  // TERRACE_CHECKs the two numbers.
  std::optional<Extent> TryAllocate(int64_t size_bytes, int64_t alignment = 1);
  // Never hands that range out, which must be free: it counts as used.
  // TERRACE_CHECKs that it is of whole units.
  void Withhold(Extent range);
  // That range itself, which is allocated from then on. False: it is not of
  // whole units, or not all of it is free.
  bool TryTake(Extent range);
  // TERRACE_CHECKs that exactly this extent is allocated.
  void Free(Extent extent);
  // Of that range, the last part that is free; nullopt: none is.
  std::optional<Extent> LastFreeIn(const Extent& range) const;
  // Adds free bytes at the end.
  void Grow(int64_t size_bytes);

  int64_t capacity_bytes() const { return capacity_; }
  int64_t used_bytes() const { return used_; }
  int64_t free_bytes() const { return capacity_ - used_; }
  int64_t largest_free_bytes() const;
  // `visit(const Extent&)` of each free range.
  template <typename Visit>
  void ForEachFree(const Visit& visit) const {
    for (const auto& [offset, size] : free_) visit(Extent{offset, size});
  }
  // The range and the free bytes that touch it: one range.
  Extent WithFreeBeside(Extent range) const;
  // Free bytes at the very end, which growth would add to.
  int64_t free_tail_bytes() const;
  // TERRACE_CHECKs its own books; for tests.
  void CheckInvariants() const;

 private:
  void AddFree(int64_t offset, int64_t size_bytes);
  void RemoveFree(std::map<int64_t, int64_t>::iterator range);

  int64_t capacity_;
  int64_t granularity_;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> free_;                // offset -> size
  std::set<std::pair<int64_t, int64_t>> by_size_;  // size, offset
  std::map<int64_t, int64_t> allocated_;           // offset -> size
};

}  // namespace terrace
