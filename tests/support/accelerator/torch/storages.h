// Sizes of device tensors and their storages. The calling thread's current
// stream moves what is kept of the bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace terrace {

void ResizeDeviceStorage(c10::StorageImpl& storage, size_t bytes);
// The storage grows where it has to.
void ResizeDeviceTensor(const at::Tensor& tensor, c10::IntArrayRef size,
                        std::optional<c10::IntArrayRef> stride = std::nullopt);

}  // namespace terrace
