// Values of a checkpoint's tensors, read into memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/weight_files.h"

namespace terrace {

// One thread at a time. The files must outlive it.
class StoredValues {
 public:
  // Besides the targets: one buffer for all, made for what is not read to its
  // place directly.
  static constexpr int64_t kBufferBytes = 4 << 20;

  explicit StoredValues(const WeightFiles& files) : files_(files) {}

  // Fills `target`, which has the stored shape, any strides without elements
  // in one place, and bytes in CPU memory that no hook has; converts to its
  // dtype. Errors: as WeightFiles::Read; ResourceExhausted: no memory for the
  // buffer.
  absl::Status Read(const WeightFiles::Tensor& stored,
                    const at::Tensor& target);

 private:
  // With the stored elements from the `first` on.
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
