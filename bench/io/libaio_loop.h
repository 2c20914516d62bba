// The least that moves files through Linux's older asynchronous interface,
// io_submit and io_getevents: what the processor time of ours is compared
// with. By system calls: the benchmark must not need a library for a peer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aio/engine.h"

namespace terrace::bench {

// One thread at a time.
class LibaioLoop {
 public:
  // request.file is an index into `fds`, which must stay open. Unavailable
  // where the kernel has no such interface.
  static absl::StatusOr<std::unique_ptr<LibaioLoop>> Create(
      const std::vector<int>& fds);
  ~LibaioLoop();
  LibaioLoop(const LibaioLoop&) = delete;
  LibaioLoop& operator=(const LibaioLoop&) = delete;

  // Moves what `next` gives until it returns false, `depth` at a time.
  absl::Status Run(int depth, const std::function<bool(IoRequest*)>& next);

 private:
  LibaioLoop() = default;

  std::vector<int> fds_;
  uint64_t context_ = 0;
};

}  // namespace terrace::bench
