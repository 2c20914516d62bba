// Where the tensors of safetensors files lie, for the Python package, which
// reads their bytes into what it offloads. Stateless and thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "libtorch/python/outcome.h"

namespace terrace {

// torch.classes.terrace.Weights.
class WeightsBinding final : public ::torch::CustomClassHolder {
 public:
  // Of each tensor the name, the file, an empty tensor of its dtype, its shape
  // and its offset in the file. Errors of WeightFiles::Open.
  using Found =
      std::tuple<Outcome, std::vector<std::string>, std::vector<std::string>,
                 std::vector<at::Tensor>, std::vector<std::vector<int64_t>>,
                 std::vector<int64_t>>;
  static Found Find(const std::string& path);

  // The tensors that an index names, and of each the name of its file. Errors
  // of WeightFiles::ReadIndex.
  static std::tuple<Outcome, std::vector<std::string>, std::vector<std::string>>
  ReadIndex(const std::string& path);
};

}  // namespace terrace
