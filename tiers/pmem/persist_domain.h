// A file or a DAX device mapped for stores that persist: the only door to
// libpmem2. In a build without that, nothing can be mapped.
//
// The mapping is shared and read from the beginning of the file; the descriptor
// stays the caller's, and may be closed. All but the destructor is thread-safe
// for ranges that do not overlap. A file that is cut below a mapping is SIGBUS
// for the next store, as is a hole in a full file system, or a bad block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "tiers/extent.h"

namespace terrace {

// What of a store must be flushed before it survives a loss of power: nothing,
// the cache line, or the page, which only the file system can.
enum class StoreGranularity { kByte, kCacheLine, kPage };

constexpr const char* StoreGranularityName(StoreGranularity granularity) {
  constexpr const char* kNames[] = {"BYTE", "CACHE_LINE", "PAGE"};
  return kNames[static_cast<int>(granularity)];
}

class PersistDomain {
 public:
  // kSafe: refused where stores persist by page only. kUnsafe: for tests, any
  // file will do; pages are flushed by msync.
  enum class Media { kSafe, kUnsafe };

  struct Shape {
    int64_t size_bytes = 0;
    int64_t alignment = 0;  // of the mapping's size
  };

  // Asked before all else. Unimplemented: a build without libpmem2.
  // Unavailable: PMEM2_FORCE_* is set.
  static absl::Status CheckAvailable();

  // `name` is what errors call it; `size_bytes`, a multiple of the alignment,
  // must be there. Unavailable: no persistent memory, in one line with the file
  // system and the granularity; or libpmem2 says that there is some and the
  // kernel refuses MAP_SYNC, or that caches persist and the kernel does not.
  // InvalidArgument: neither a regular file nor a DAX device.
  // ResourceExhausted: no memory, or address space.
  static absl::StatusOr<std::unique_ptr<PersistDomain>> Map(
      int fd, const std::string& name, int64_t size_bytes, Media media);
  // Of a file or DAX device, before it is mapped. Errors as above.
  static absl::StatusOr<Shape> ShapeOf(int fd, const std::string& name);
  // The bad blocks that the kernel knows of, in the file, in no order.
  // Unavailable, PermissionDenied: they cannot be read.
  static absl::StatusOr<std::vector<Extent>> BadRanges(int fd,
                                                       const std::string& name);
  // How often the power of the medium below was lost before its stores were
  // safe, of all its modules together; -1: nothing counts that, as of an
  // ordinary file, or only tells it a privileged user. Unavailable: it cannot
  // be read.
  static absl::StatusOr<int64_t> UnsafeShutdowns(int fd,
                                                 const std::string& name);

  ~PersistDomain();
  PersistDomain(const PersistDomain&) = delete;
  PersistDomain& operator=(const PersistDomain&) = delete;

  absl::Span<std::byte> bytes() const { return bytes_; }
  StoreGranularity granularity() const { return granularity_; }
  const std::string& cause() const { return cause_; }  // of the granularity

  // Past the caches where they would only be in the way; persistent when it
  // returns. Errors are msync's, of unsafe media alone: what the file then
  // holds is unknown.
  absl::Status Copy(int64_t offset, absl::Span<const std::byte> from);
  // For what was stored through bytes().
  absl::Status Persist(int64_t offset, int64_t size_bytes);

 private:
  struct Mapping;  // of libpmem2
  PersistDomain(const std::string& name, std::unique_ptr<Mapping> mapping);
  absl::Status Judge(int fd, const std::string& name, Media media);
  std::byte* At(int64_t offset, int64_t size_bytes) const;
  absl::Status Sync(int64_t offset, int64_t size_bytes);

  const std::string name_;
  const Process process_;
  std::unique_ptr<Mapping> mapping_;
  absl::Span<std::byte> bytes_;
  StoreGranularity granularity_ = StoreGranularity::kPage;
  std::string cause_;
};

}  // namespace terrace
