// The elements of a tensor for a checkpoint where they have no address that the
// CPU can use: on a device, offloaded, or not in order. Copied as they are
// asked for, so that at most a block of 4 MiB of them is in CPU memory.
//
// Thread-compatible. Holds a reference to the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libtorch/tensor_check.h"
#include "terrace/checkpoint.h"

namespace terrace {

class TensorElements final : public CheckpointElements {
 public:
  // Of any dtype with elements of 1, 2, 4 or 8 bytes.
  explicit TensorElements(const at::Tensor& tensor);

  // Whether a tensor needs this.
  static bool AreNeededFor(const at::Tensor& tensor) {
    return !tensor.is_cpu() || !tensor.is_contiguous() || IsOffloaded(tensor);
  }

  absl::Status Read(int64_t offset, absl::Span<std::byte> target) override;
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> source) override;

 private:
  const at::Tensor tensor_;  // its bits, as integers
};

}  // namespace terrace
