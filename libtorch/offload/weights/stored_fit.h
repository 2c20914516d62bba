// Whether a checkpoint's tensors and a model's are the same, by their names.
// Looks at no values.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/weight_files.h"

namespace torch::nn {
class Module;
}

namespace terrace {

// A parameter or buffer by one of its names.
struct ModelEntry {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  const WeightFiles::Tensor* stored = nullptr;  // null: the files have none
};

// The model's parameters, then its buffers, by all names that they have; of
// the files' tensors, which must outlive them.
std::vector<ModelEntry> EntriesOf(const ::torch::nn::Module& model,
                                  const WeightFiles::Tensors& stored);

// InvalidArgument, with all names: a parameter that is not on the meta device,
// or cannot leave it; what is there and has no values in `path`, unless they
// come with another of its storage; what the files have and the model has not;
// other shapes; dtypes that LibTorch does not convert into each other.
absl::Status CheckFit(const std::string& path,
                      const std::vector<ModelEntry>& entries,
                      const WeightFiles::Tensors& stored);

}  // namespace terrace
