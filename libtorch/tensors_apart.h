// Parameters are written at the same time, so none may share an element with
// another: what both doors to LibTorch, terrace_torch and the Python module,
// ask of all of them. Compiled into each of them.
//
// Looks at addresses, sizes and strides, and again when any of these changed.
// Views that take turns in one storage, such as columns of a matrix, are
// compared element by element: that takes a byte for each element between the
// first and the last one of them, in CPU memory, for that time. All others
// cost a sort.
//
// Thread-compatible. Throws what LibTorch throws where it finds no memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace terrace {

class TensorsApart {
 public:
  // The indices of two tensors that share memory, the lower one first; nothing:
  // all are apart. The tensors are dense or strided and have storage.
  std::optional<std::pair<size_t, size_t>> FindOverlap(
      absl::Span<const at::Tensor> tensors);

 private:
  std::vector<size_t> known_;  // of each tensor, when all of them were apart
};

// Of two parameters, as they are called in a message, that share memory.
absl::Status OverlapError(const std::string& first, const std::string& second);

}  // namespace terrace
