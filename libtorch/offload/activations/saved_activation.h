// Autograd has this object in place of one tensor that it saved in a scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>

#include "libtorch/offload/activations/saving_scope.h"

namespace terrace {

// One thread at a time may use it, as a node of the graph.
class SavedActivation final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedActivation(std::shared_ptr<SavingScope> scope);

  // Throws c10::Error when the tensor cannot go below.
  void call_pack_hook(const at::Tensor& tensor) override;
  // Throws c10::Error when the tensor was written to in between, which LibTorch
  // itself checks only for saved tensors without hooks.
  at::Tensor call_unpack_hook() override;

 private:
  std::shared_ptr<SavingScope> scope_;  // until the tensor is packed
  const std::shared_ptr<Activations> activations_;
  at::Tensor saved_;
  int64_t version_ = 0;
};

}  // namespace terrace
