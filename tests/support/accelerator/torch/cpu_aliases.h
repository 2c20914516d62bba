// CPU tensors over the memory of device tensors, for kernels on a stream's
// thread: the same sizes, strides and types, a storage where the device's is
// one, and no hold on it, as a kernel of a real device has none. Also what they
// are on the Meta device, where nothing has memory.
//
// One operator's, on one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "tests/support/accelerator/stream_order.h"

namespace terrace {

// The bytes that the tensor's elements lie in, by its own addresses.
AddressRange BytesOf(const at::Tensor& tensor);
// A CPU tensor like this one, whose storage begins at `base`.
at::Tensor CpuTensorAt(const at::Tensor& like, std::byte* base);
// No memory, and the same else.
at::Tensor MetaTensorLike(const at::Tensor& like);

// Each tensor in the value, lists too, is replaced.
using TensorChange = std::function<at::Tensor(const at::Tensor&)>;
c10::IValue WithTensors(const c10::IValue& value, const TensorChange& change);
bool HasTensors(const c10::IValue& value);

class CpuAliases {
 public:
  // The tensor's alias, the same for the same tensor; its bytes are used. A CPU
  // tensor's is a copy as of now. Throws c10::Error for what has no memory, and
  // for a CPU tensor that is not a number, or is written to, unless
  // `is_copied` says that it may be any.
  at::Tensor Of(const at::Tensor& tensor, bool is_written, bool is_copied);

  const std::vector<Touch>& touches() const { return touches_; }

 private:
  at::Tensor OfDevice(const at::Tensor& tensor);
  void NoteTouch(const Touch& touch);

  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  std::vector<Touch> touches_;
};

}  // namespace terrace
