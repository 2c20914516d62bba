// The parameters that groups of a LibTorch optimizer have, or had. Each is here
// once, in the order in which they were first seen, which is the order of their
// state.
//
// Thread-compatible. The parameters are kept alive, so that an address stands
// for one of them only.
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

  // Returns the groups' parameters that are not known yet. Returns
  // InvalidArgument, by the position in all groups, for a parameter that cannot
  // be stepped, or is in the groups twice; and, by indices, for two that share
  // memory, among these and those that are known.
  absl::StatusOr<Added> FindAdded(
      const std::vector<::torch::optim::OptimizerParamGroup>& groups,
      OffloadedTensors offloaded);
  void Append(std::vector<at::Tensor> added);

  // Returns, by index, which of the known parameters are in the groups, of
  // which all are known.
  std::vector<bool> AreIn(
      const std::vector<::torch::optim::OptimizerParamGroup>& groups) const;
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int IndexOf(const at::Tensor& parameter) const;  // -1: unknown

 private:
  absl::Status CheckApart(absl::Span<const at::Tensor> tensors);

  std::vector<at::Tensor> tensors_;
  std::unordered_map<const c10::TensorImpl*, int> indices_;
  TensorsApart apart_;
};

}  // namespace terrace
