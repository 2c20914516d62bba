#include "libtorch/offload/activations/storage_set.h"

namespace terrace {

void StorageSet::Add(absl::Span<const at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage =
        tensor.unsafeGetTensorImpl()->unsafe_storage();
    if (!addresses_.insert(storage.unsafeGetStorageImpl()).second) continue;
    storages_.push_back(storage.getWeakStorageImpl());
  }
}

bool StorageSet::Has(const at::Tensor& tensor) const {
  return tensor.has_storage() &&
         addresses_.contains(tensor.unsafeGetTensorImpl()
                                 ->unsafe_storage()
                                 .unsafeGetStorageImpl());
}

}  // namespace terrace
