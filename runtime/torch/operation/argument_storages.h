// The storages that an operation's argument brings: of a tensor, of a list of
// them with or without gaps, of a list of such lists, or the storage that a
// tensor is set to, whose address LibTorch 2.15 asks for.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

namespace terrace {

// `visit(c10::StorageImpl*)` for each, as often as it is there.
template <typename Visit>
void ForEachStorage(const c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    const c10::TensorImpl* const tensor = argument.unsafeToTensorImpl();
    if (tensor->has_storage()) {
      visit(tensor->unsafe_storage().unsafeGetStorageImpl());
    }
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
