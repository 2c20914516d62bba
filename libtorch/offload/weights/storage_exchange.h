// Tensors that get another storage, of another device too, and stay the same
// tensors for all that have them: members of modules, their dictionaries,
// optimizers. LibTorch's set_data() refuses that from and to the meta device.
//
// One thread at a time, and no operation may use the tensors. LibTorch's
// exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

namespace terrace {

// Why it cannot have another storage, as the rest of a sentence, or "".
std::string ExchangeFault(const at::Tensor& tensor);

// These, and those of their storages that they are views of, as autograd has
// it; each once.
std::vector<at::Tensor> WithBases(const std::vector<at::Tensor>& tensors);

// Of so many bytes, which have no values yet.
c10::Storage MakeStorage(int64_t size_bytes, c10::Device device);

// The elements of a storage, as large at least as `like`'s, that `like` has of
// its own; with its shape, strides and dtype.
at::Tensor OverStorage(const c10::Storage& storage, const at::Tensor& like);

// From here on `tensor` has the storage, and so the device, of what
// OverStorage made for it. Its version and what autograd knows of it stay; a
// gradient is dropped.
void Exchange(const at::Tensor& tensor, const at::Tensor& made);

}  // namespace terrace
