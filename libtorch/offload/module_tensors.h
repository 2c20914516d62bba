// The parameters of a model of LibTorch's C++ modules, and which of them an
// operation takes at a time. Looks at no bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace terrace {

struct ModuleTensors {
  std::vector<at::Tensor> tensors;  // a tensor of several modules once
  std::vector<std::string> names;   // of each, the first that it has
  // For each module that has parameters of its own, these, by index: no
  // operation of LibTorch's C++ modules takes those of several.
  std::vector<std::vector<int64_t>> modules;
};

ModuleTensors TensorsOf(const ::torch::nn::Module& model);

}  // namespace terrace
