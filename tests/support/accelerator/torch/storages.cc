#include "tests/support/accelerator/torch/storages.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "tests/support/accelerator/torch/accelerator_allocator.h"
#include "tests/support/accelerator/torch/tensor_copies.h"

namespace terrace {

void ResizeDeviceStorage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(),
              "testdev: a storage that is not resizable cannot have ", bytes,
              " bytes");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr made = AcceleratorAllocator().allocate(bytes);
  const size_t kept = std::min(storage.nbytes(), bytes);
  if (kept > 0) CopyDeviceBytes(made.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(made));
  storage.set_nbytes(bytes);
}

void ResizeDeviceTensor(const at::Tensor& tensor, c10::IntArrayRef size,
                        std::optional<c10::IntArrayRef> stride) {
  c10::TensorImpl& own = *tensor.unsafeGetTensorImpl();
  if (own.sizes() == size && (!stride || own.strides() == *stride)) return;
  if (stride) {
    own.set_sizes_and_strides(size, *stride);
  } else {
    own.set_sizes_contiguous(size);
  }
  if (own.numel() == 0) return;
  const auto offset = static_cast<size_t>(own.storage_offset());
  const size_t bytes = stride ? at::detail::computeStorageNbytes(
                                    size, *stride, own.itemsize(), offset)
                              : at::detail::computeStorageNbytesContiguous(
                                    size, own.itemsize(), offset);
  c10::StorageImpl& storage = *own.unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage.nbytes()) ResizeDeviceStorage(storage, bytes);
}

}  // namespace terrace
