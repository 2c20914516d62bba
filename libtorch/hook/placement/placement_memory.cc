#include "libtorch/hook/placement/placement_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

absl::StatusOr<std::shared_ptr<PlacementMemory>> PlacementMemory::Map(
    int64_t size_bytes) {
  if (size_bytes <= 0 || size_bytes > INT64_MAX - kBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an arena of ", size_bytes, " bytes"));
  }
  const auto size = static_cast<size_t>(RoundUp(size_bytes, kBlockBytes));
  void* const begin = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("an arena of ", size_bytes, " bytes"));
  }
  return std::shared_ptr<PlacementMemory>(
      new PlacementMemory(static_cast<std::byte*>(begin), size));
}

PlacementMemory::PlacementMemory(std::byte* begin, size_t size_bytes)
    : begin_(begin), size_bytes_(size_bytes), free_({{0, size_bytes}}) {}

PlacementMemory::~PlacementMemory() {
  TERRACE_CHECK(used_bytes() == 0);
  munmap(begin_, size_bytes_);
}

std::byte* PlacementMemory::Take(size_t size_bytes) {
  if (size_bytes > size_bytes_) return nullptr;
  const auto size = static_cast<size_t>(
      RoundUp(static_cast<int64_t>(size_bytes), kBlockBytes));
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(free_.begin(), free_.end(),
                   [&](const auto& range) { return range.second >= size; });
  if (found == free_.end()) return nullptr;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > size) free_.emplace(offset + size, room - size);
  taken_.emplace(offset, size);
  used_ += size;
  return begin_ + offset;
}

void PlacementMemory::Give(std::byte* range) {
  auto offset = static_cast<size_t>(range - begin_);
  MutexLock lock(mutex_);
  const auto taken = taken_.find(offset);
  TERRACE_CHECK(taken != taken_.end());
  size_t size = taken->second;
  taken_.erase(taken);
  used_ -= size;
  // The pages go before the range can be taken again. If madvise fails, only
  // these pages are lost.
  madvise(range, size, MADV_DONTNEED);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + size) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, size);
}

int64_t PlacementMemory::used_bytes() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(used_);
}

}  // namespace terrace
