// Moves a C++ module to the accelerator in place. Module::to refuses, as
// LibTorch lets parameters become those of another backend in place only where
// it knows both; a GPU's it knows. In Python, Module.to makes new parameters.
#pragma once

#include <torch/nn/module.h>

namespace terrace {

inline void MoveModule(torch::nn::Module& module, c10::Device device) {
  const auto move = [&](const at::Tensor& tensor) {
    const at::Tensor moved = tensor.detach().to(device);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  };
  for (const at::Tensor& tensor : module.parameters()) move(tensor);
  for (const at::Tensor& tensor : module.buffers()) move(tensor);
}

}  // namespace terrace
