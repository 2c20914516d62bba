// What one run of `terrace-bench io` moves, and in which order: the same for
// every contender.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "aio/engine.h"

namespace terrace::bench {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr int64_t kGiB = 1 << 30;

// Reads of the first part of each file, writes of the part behind it, one in
// turn with the other. Files take turns too.
struct Load {
  int64_t read_bytes = 0;  // of all files together
  int64_t written_bytes = 0;
  int files = 1;
  // Of memory that is gone through again and again. 8 MiB stays in a cache,
  // as fio's buffers do; 256 MiB does not, as tensors do not.
  int64_t footprint = 256 * kMiB;
  // Of each file; offsets begin again behind it. 0: no such end.
  int64_t wrap = 0;

  int64_t total() const { return read_bytes + written_bytes; }
};

// `step` bytes at a time; it divides the load's sizes, its footprint and its
// wrap.
class LoadCursor {
 public:
  LoadCursor(const Load& load, absl::Span<std::byte> memory, int64_t step)
      : load_(load), memory_(memory), step_(step) {}

  // request->file is the index of the file among the load's.
  bool Next(IoRequest* request) {
    const bool can_read = read_ < load_.read_bytes;
    const bool can_write = written_ < load_.written_bytes;
    if (!can_read && !can_write) return false;
    const bool reads = can_read && (!can_write || read_ <= written_);
    int64_t& done = reads ? read_ : written_;
    const int64_t unit = done / step_;
    const int64_t base = reads ? 0 : load_.read_bytes / load_.files;
    int64_t offset = base + unit / load_.files * step_;
    if (load_.wrap > 0) offset %= load_.wrap;
    request->file = static_cast<int>(unit % load_.files);
    request->direction = reads ? IoDirection::kRead : IoDirection::kWrite;
    request->offset = offset;
    request->data = memory_.data() +
                    ((reads ? 0 : load_.read_bytes) + done) % load_.footprint;
    request->size_bytes = step_;
    done += step_;
    return true;
  }

 private:
  const Load load_;
  const absl::Span<std::byte> memory_;
  const int64_t step_;
  int64_t read_ = 0;
  int64_t written_ = 0;
};

}  // namespace terrace::bench
