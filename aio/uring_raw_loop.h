// The least that moves a file through io_uring: what terrace-bench io
// compares IoGroup with. No queue, no continuation, no retry; a transfer that
// is not whole is an error. Built into the benchmark only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aio/engine.h"

namespace terrace {

class UringRawLoop {
 public:
  // The ring belongs to the calling thread. `arena` is registered if the
  // kernel lets it.
  static absl::StatusOr<std::unique_ptr<UringRawLoop>> Create(
      int fd, absl::Span<std::byte> arena);

  virtual ~UringRawLoop() = default;

  // Moves what `next` gives until it returns false, `depth` at a time.
  virtual absl::Status Run(int depth,
                           const std::function<bool(IoRequest*)>& next) = 0;
};

}  // namespace terrace
