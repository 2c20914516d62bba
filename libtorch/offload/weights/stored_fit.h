// Checks whether a checkpoint's tensors fit a model's, by their names. No
// values are looked at.
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

// Returns the model's parameters, then its buffers, by all names that they
// have. The entries point to the files' tensors, which must outlive them.
std::vector<ModelEntry> EntriesOf(const ::torch::nn::Module& model,
                                  const WeightFiles::Tensors& stored);

// Returns InvalidArgument, with all names, for parameters that are not on the
// meta device, or cannot leave it; for parameters and buffers there that have
// no values in `path`, unless the values come with another tensor of the same
// storage; for tensors that the files have and the model has not; for other
// shapes; for dtypes that LibTorch does not convert into each other; and for
// tensors that have no place for each value.
absl::Status CheckFit(const std::string& path,
                      const std::vector<ModelEntry>& entries,
                      const WeightFiles::Tensors& stored);

}  // namespace terrace
