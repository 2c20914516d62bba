// Reads values of a checkpoint's tensors into memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/weight_files.h"

namespace terrace {

// One thread at a time may use it. The files must outlive it.
class StoredValues {
 public:
  // The size of the one buffer that there is besides the targets. It is made
  // once values cannot be read directly to their place.
  static constexpr int64_t kBufferBytes = 4 << 20;

  explicit StoredValues(const WeightFiles& files) : files_(files) {}

  // Fills `target` with the stored values, converted to its dtype. `target` has
  // the stored shape, any strides that put no two elements in one place, and
  // bytes in CPU memory that no hook has. Returns ResourceExhausted when there
  // is no memory for the buffer, else the errors of WeightFiles::Read.
  absl::Status Read(const WeightFiles::Tensor& stored,
                    const at::Tensor& target);

 private:
  // These fill `target` with the stored elements from the element `first` on.
  absl::Status Fill(const WeightFiles::Tensor& stored, const at::Tensor& target,
                    int64_t first);
  absl::Status Convert(const WeightFiles::Tensor& stored,
                       const at::Tensor& target, int64_t first);
  absl::Status ReadBytes(const WeightFiles::Tensor& stored,
                         const at::Tensor& target, int64_t first) const;

  const WeightFiles& files_;
  at::Tensor buffer_;  // undefined until it is needed
};

}  // namespace terrace
