// The parameters that groups of a LibTorch optimizer have, or had: each once,
// in the order in which they were first seen, which is that of their state.
//
// Thread-compatible. Keeps them alive, so that an address means one.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/tensor_check.h"
#include "libtorch/tensors_apart.h"
#include "terrace/optimizer.h"

namespace terrace {

class KnownParameters {
 public:
  struct Added {
    std::vector<at::Tensor> tensors;
    std::vector<ParameterSpec> specs;
  };

  // What the groups have that is not known, all of it apart from each other and
  // from what is. InvalidArgument, by the position in all groups: what cannot
  // be stepped, or is there twice.
  absl::StatusOr<Added> FindAdded(
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      OffloadedTensors offloaded);
  void Append(std::vector<at::Tensor> added);

  // InvalidArgument: two that are known share memory.
  absl::Status CheckApart() { return CheckApart(tensors_); }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int IndexOf(const at::Tensor& parameter) const;  // -1: unknown

 private:
  absl::Status CheckApart(absl::Span<const at::Tensor> tensors);

  std::vector<at::Tensor> tensors_;
  std::unordered_map<const c10::TensorImpl*, int> indices_;
  TensorsApart apart_;
};

}  // namespace terrace
