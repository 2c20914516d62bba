// A PlacementMemory is a mapping that hands out ranges of whole pages, first
// fit. It is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace terrace {

class PlacementMemory : public std::enable_shared_from_this<PlacementMemory> {
 public:
  static absl::StatusOr<std::shared_ptr<PlacementMemory>> Map(
      int64_t size_bytes);
  ~PlacementMemory();
  PlacementMemory(const PlacementMemory&) = delete;
  PlacementMemory& operator=(const PlacementMemory&) = delete;

  // Returns null when there is no free range of that size. size_bytes > 0.
  std::byte* Take(size_t size_bytes);
  // Takes a range back that was taken; its pages go back to the system.
  void Give(std::byte* range);

  bool Contains(const void* address) const {
    return address >= begin_ && address < begin_ + size_bytes_;
  }
  int64_t size_bytes() const { return static_cast<int64_t>(size_bytes_); }
  int64_t used_bytes() const;

 private:
  PlacementMemory(std::byte* begin, size_t size_bytes);

  std::byte* const begin_;
  const size_t size_bytes_;
  mutable Mutex mutex_;
  // Both map an offset to a size; free ranges never touch each other.
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, size_t> taken_ ABSL_GUARDED_BY(mutex_);
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
