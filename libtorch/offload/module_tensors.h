// Lists the parameters of a model of LibTorch's C++ modules, and which of them
// an operation takes at a time. No bytes are looked at.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace torch::nn {
class Module;
}

namespace terrace {

struct ModuleTensors {
  std::vector<at::Tensor> tensors;  // a tensor of several modules once
  std::vector<std::string> names;   // the first name of each tensor
  // The parameters of each module that has parameters of its own, by index. No
  // operation of LibTorch's C++ modules takes parameters of several modules.
  std::vector<std::vector<int64_t>> modules;
};

ModuleTensors TensorsOf(const ::torch::nn::Module& model);

// Returns the device of all of these tensors, the CPU for none. Fails with
// InvalidArgument, which names two of them, when they are on several.
absl::StatusOr<c10::Device> DeviceOf(const ModuleTensors& found);

}  // namespace terrace
