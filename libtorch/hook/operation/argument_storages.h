// These functions visit the storages that an operation's argument brings: that
// of a tensor, or those that a sparse tensor is made of; those of a list of
// tensors, with or without gaps, or of a list of such lists; or the storage
// that a tensor is set to, whose address LibTorch 2.15 asks for.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

namespace terrace {

// Visits a tensor's storage, or those of a sparse tensor's indices and values,
// which kernels read without an operation on them.
template <typename Visit>
void ForEachStorageOf(const c10::TensorImpl& tensor, const Visit& visit) {
  const auto visit_part = [&visit](const at::Tensor& part) {
    ForEachStorageOf(*part.unsafeGetTensorImpl(), visit);
  };
  if (tensor.has_storage()) {
    visit(tensor.unsafe_storage().unsafeGetStorageImpl());
  } else if (tensor.is_sparse()) {
    const auto& sparse = static_cast<const at::SparseTensorImpl&>(tensor);
    visit_part(sparse.indices());
    visit_part(sparse.values());
  } else if (tensor.is_sparse_compressed()) {
    const auto& sparse = static_cast<const at::SparseCsrTensorImpl&>(tensor);
    visit_part(sparse.compressed_indices());
    visit_part(sparse.plain_indices());
    visit_part(sparse.values());
  }
}

// Calls `visit(c10::StorageImpl*)` for each storage, as often as it is there.
template <typename Visit>
void ForEachStorage(const c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    ForEachStorageOf(*argument.unsafeToTensorImpl(), visit);
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isNone()) continue;
      if (!element.isTensor() && !element.isList()) break;
      ForEachStorage(element, visit);
    }
  } else if (argument.isStorage()) {
    const c10::Storage storage = argument.toStorage();
    visit(storage.unsafeGetStorageImpl());
  }
}

}  // namespace terrace
