// Gives tensors another storage, of another device too. They stay the same
// tensors for all that have them: members of modules, their dictionaries,
// optimizers. LibTorch's set_data() refuses that from and to the meta device.
//
// One thread at a time may call these functions, and no operation may use the
// tensors meanwhile. LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

namespace terrace {

// Returns why the tensor cannot have another storage, as the rest of a
// sentence, or "".
std::string ExchangeFault(const at::Tensor& tensor);

// Returns these tensors, and the tensors of the same storages that they are
// views of, as autograd has it; each once.
std::vector<at::Tensor> WithBases(const std::vector<at::Tensor>& tensors);

// Returns a storage of this many bytes, which have no values yet.
c10::Storage MakeStorage(int64_t size_bytes, c10::Device device);

// Returns a tensor over the elements of a storage that `like` has of its own,
// with the shape, strides and dtype of `like`. The storage is at least as large
// as that of `like`.
at::Tensor OverStorage(const c10::Storage& storage, const at::Tensor& like);

// From here on `tensor` has the storage, and so the device, of `made`, which
// OverStorage has made for it. The tensor's version and what autograd knows of
// the tensor stay; its gradient is dropped.
void Exchange(const at::Tensor& tensor, const at::Tensor& made);

}  // namespace terrace
