#include "libtorch/offload/model_activations.h"

#include <torch/nn/module.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "libtorch/offload/activations/saving_engine.h"

namespace terrace {

absl::Status PrepareActivations(const ::torch::nn::Module& model,
                                const OffloadOptions& options) {
  if (!options.activations) return absl::OkStatus();
  for (const auto& named : model.named_parameters()) {
    if (options.parameters || named.value().is_cpu()) continue;
    return absl::UnimplementedError(
        absl::StrCat("activations: parameter '", named.key(), "' is on ",
                     named.value().device().str(),
                     "; those of models in CPU memory go below so far"));
  }
  return InstallSavingEngine();
}

std::shared_ptr<Activations> MakeActivations(
    const ::torch::nn::Module& model, const OffloadOptions& options,
    const std::shared_ptr<OffloadPlace>& place) {
  if (!options.activations) return nullptr;
  std::vector<at::Tensor> kept = model.parameters();
  const std::vector<at::Tensor> buffers = model.buffers();
  kept.insert(kept.end(), buffers.begin(), buffers.end());
  return std::make_shared<Activations>(
      std::shared_ptr<Hook>(place, &place->hook()),
      options.activations_above_bytes, kept);
}

}  // namespace terrace
