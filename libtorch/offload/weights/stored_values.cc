#include "libtorch/offload/weights/stored_values.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>

#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/stored_dtypes.h"

namespace terrace {

absl::Status StoredValues::Read(const WeightFiles::Tensor& stored,
                                const at::Tensor& target) {
  absl::Status read;
  const absl::Status thrown = Guarded(at::kCPU, [&] {
    const c10::NoGradGuard guard;
    read = Fill(stored, target, 0);
  });
  return thrown.ok() ? read : thrown;
}

absl::Status StoredValues::Fill(const WeightFiles::Tensor& stored,
                                const at::Tensor& target, int64_t first) {
  const int64_t count = target.numel();
  if (count == 0) return absl::OkStatus();
  if (target.scalar_type() == ScalarTypeOf(stored.dtype) &&
      target.is_contiguous()) {
    return ReadBytes(stored, target, first);
  }
  const int64_t most = kBufferBytes / DTypeBytes(stored.dtype);
  if (count <= most) return Convert(stored, target, first);
  if (target.size(0) == 1) return Fill(stored, target.select(0, 0), first);
  const int64_t row = count / target.size(0);
  const int64_t rows = std::max<int64_t>(1, most / row);
  for (int64_t i = 0; i < target.size(0); i += rows) {
    const int64_t part = std::min(rows, target.size(0) - i);
    TERRACE_RETURN_IF_ERROR(
        Fill(stored, target.narrow(0, i, part), first + i * row));
  }
  return absl::OkStatus();
}

absl::Status StoredValues::Convert(const WeightFiles::Tensor& stored,
                                   const at::Tensor& target, int64_t first) {
  if (!buffer_.defined()) buffer_ = at::empty({kBufferBytes}, at::kByte);
  const at::Tensor part =
      buffer_.narrow(0, 0, target.numel() * DTypeBytes(stored.dtype))
          .view(ScalarTypeOf(stored.dtype));
  TERRACE_RETURN_IF_ERROR(ReadBytes(stored, part, first));
  target.copy_(part.view(target.sizes()));
  return absl::OkStatus();
}

absl::Status StoredValues::ReadBytes(const WeightFiles::Tensor& stored,
                                     const at::Tensor& target,
                                     int64_t first) const {
  return files_.Read(
      stored, first * DTypeBytes(stored.dtype),
      {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()});
}

}  // namespace terrace
