// The least that moves a file through io_uring: what terrace-bench io
// compares IoPaths with. No queue, no continuation, no retry; a transfer that
// is not whole is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aio/engine.h"

namespace terrace {

class UringRawLoop {
 public:
  // The ring belongs to the calling thread. `fds`, which must stay open, and
  // `arena` are registered if the kernel lets them be.
  static absl::StatusOr<std::unique_ptr<UringRawLoop>> Create(
      const std::vector<int>& fds, absl::Span<std::byte> arena);

  virtual ~UringRawLoop() = default;

  // Moves what `next` gives until it returns false, `depth` at a time.
  // request.file is an index into `fds`.
  virtual absl::Status Run(int depth,
                           const std::function<bool(IoRequest*)>& next) = 0;
};

}  // namespace terrace
