#include "libtorch/offload/module_tensors.h"

#include <torch/nn/module.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace terrace {

ModuleTensors TensorsOf(const ::torch::nn::Module& model) {
  ModuleTensors found;
  absl::flat_hash_map<const c10::TensorImpl*, int64_t> index_of;
  model.apply([&](const std::string& prefix,
                  const ::torch::nn::Module& module) {
    std::vector<int64_t> own;
    for (const auto& named : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = named.value();
      const auto [known, is_new] =
          index_of.emplace(tensor.unsafeGetTensorImpl(), found.tensors.size());
      if (is_new) {
        found.tensors.push_back(tensor);
        found.names.push_back(prefix.empty()
                                  ? named.key()
                                  : absl::StrCat(prefix, ".", named.key()));
      }
      own.push_back(known->second);
    }
    if (!own.empty()) found.modules.push_back(std::move(own));
  });
  return found;
}

absl::StatusOr<c10::Device> DeviceOf(const ModuleTensors& found) {
  for (size_t i = 1; i < found.tensors.size(); ++i) {
    if (found.tensors[i].device() == found.tensors[0].device()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", found.names[i], "' is on ",
        found.tensors[i].device().str(), ", and '", found.names[0], "' on ",
        found.tensors[0].device().str(), "; a model is offloaded on one"));
  }
  if (found.tensors.empty()) return c10::Device(c10::kCPU);
  return found.tensors[0].device();
}

}  // namespace terrace
