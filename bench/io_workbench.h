// What both sides of `terrace-bench io` share: the file, the memory, and the
// order in which a run goes through them.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aio/engine.h"

namespace terrace::bench {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr int64_t kTransfer = 8 * kMiB;  // a chunk
inline constexpr int64_t kArena = 64 * kMiB;    // bulk cycles through it
inline constexpr int64_t kDemand = kMiB;        // a demand read
inline constexpr int64_t kDemandArena = 2 * kMiB;

// The file, written once and nameless, and the memory; both measured ways
// use them.
class Workbench {
 public:
  Workbench() = default;
  ~Workbench() {
    if (fd_ >= 0) close(fd_);
    if (arena_ != nullptr) munmap(arena_, kArena + kDemandArena);
  }
  Workbench(const Workbench&) = delete;
  Workbench& operator=(const Workbench&) = delete;

  absl::Status Setup(const std::string& directory, int64_t size_bytes);

  int fd() const { return fd_; }
  bool is_direct() const { return is_direct_; }
  int64_t size_bytes() const { return size_bytes_; }
  absl::Span<std::byte> arena() const {
    return {arena_, static_cast<size_t>(kArena + kDemandArena)};
  }
  // The memory that goes with an offset of the file.
  std::byte* bulk(int64_t offset) const { return arena_ + offset % kArena; }
  std::byte* demand() const { return arena_ + kArena; }

 private:
  absl::Status Open(const std::string& directory);

  int fd_ = -1;
  bool is_direct_ = true;
  int64_t size_bytes_ = 0;
  std::byte* arena_ = nullptr;
};

// What one run moves: reads of the first part, writes of the second, one in
// turn with the other; `piece` bytes each.
struct Load {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  bool demand = false;

  int64_t total() const { return read_bytes + written_bytes; }
};

class LoadCursor {
 public:
  LoadCursor(const Load& load, const Workbench& bench, int64_t step)
      : load_(load), bench_(bench), step_(step) {}

  bool Next(IoRequest* request) {
    const bool can_read = read_ < load_.read_bytes;
    const bool can_write = written_ < load_.written_bytes;
    if (!can_read && !can_write) return false;
    const bool reads = can_read && (!can_write || read_ <= written_);
    int64_t& done = reads ? read_ : written_;
    const int64_t offset = reads ? done : load_.read_bytes + done;
    request->direction = reads ? IoDirection::kRead : IoDirection::kWrite;
    request->offset = offset;
    request->data = bench_.bulk(offset);
    request->size_bytes = step_;
    done += step_;
    return true;
  }

 private:
  const Load load_;
  const Workbench& bench_;
  const int64_t step_;
  int64_t read_ = 0;
  int64_t written_ = 0;
};

// The bound of the thread engine: as many threads as the window has pieces,
// each with its own system calls, nothing shared but a counter.
absl::Status RunRawThreads(const Workbench& bench, const Load& load,
                           int64_t piece, int depth);

}  // namespace terrace::bench
