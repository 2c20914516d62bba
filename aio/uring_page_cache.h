// A ring's transfers through the page cache. Each has moved when its result is
// here, and ends when what it wrote is on the device and its pages are dropped:
// these requests follow it under its tag, so it stays in flight meanwhile. An
// error of the device ends a write of that file, but not always the one whose
// bytes it lost: runtime/base/page_cache.h. One thread at a time.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "aio/engine.h"

struct io_uring;

namespace terrace {

class UringPageCache {
 public:
  // A transfer that goes to the ring. `fd`: of the file, or its place in the
  // ring's table.
  void Add(const IoRequest& request, int fd, bool is_fixed);

  // Whether the transfer of that tag goes on after `result`, with a request
  // that is in the ring's submission queue now. Else `result` is its end.
  bool GoesOn(io_uring* ring, uint64_t tag, int* result);

 private:
  enum class Step : uint8_t { kMove, kWriteOut, kDrop };
  struct Transfer {
    int fd = -1;
    bool is_fixed = false;
    IoDirection direction = IoDirection::kRead;
    int64_t offset = 0;
    Step step = Step::kMove;
    int moved_bytes = 0;
  };

  std::unordered_map<uint64_t, Transfer> transfers_;  // by tag
};

}  // namespace terrace
