// What ended on another thread that works for the mover: its executor's, or a
// path's background.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "terrace/tensor.h"

namespace terrace {

// A host copy has its checksum and header, for a write.
struct Sealed {
  TensorId tensor;
};
// A host copy was compared with its header, after a read.
struct Checked {
  TensorId tensor;
  absl::Status status;
};
// What a path's file gained.
struct Grown {
  int path = -1;
  absl::StatusOr<int64_t> gained_bytes;
};
// A path's file system removed a piece of what killed jobs left.
struct Reclaimed {
  int path = -1;
  bool more = false;
};
// What became of the removal of a path's file.
struct Removed {
  int path = -1;
  absl::Status status;
};
using Event = std::variant<Sealed, Checked, Grown, Reclaimed, Removed>;

}  // namespace terrace
