// Who takes over tensors that a thread's operations have made.
#pragma once

#include <ATen/core/Tensor.h>

namespace terrace {

// It is called on the thread that made the tensor, and throws nothing.
class NewbornOwner {
 public:
  virtual ~NewbornOwner() = default;
  // Nothing but the caller of the operation has the tensor's bytes.
  virtual void Adopt(const at::Tensor& tensor) = 0;
};

}  // namespace terrace
