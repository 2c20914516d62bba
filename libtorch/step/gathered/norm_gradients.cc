#include "libtorch/step/gathered/norm_gradients.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "libtorch/step/gathered/parameters.h"
#include "libtorch/tensor_check.h"

namespace terrace {

absl::Status NormGradients::Gather(const std::vector<at::Tensor>& parameters) {
  Clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = WithOwnValues(parameters[i].grad());
    GradientData& data = data_.emplace_back();
    if (!gradient.defined()) continue;
    const std::string fault = StorageFault(gradient, OffloadedTensors::kTaken);
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of parameter '", i, "' ", fault));
    }
    gradients_.push_back(gradient.variable_data().contiguous());
    data.dtype = *DTypeOf(gradient);
    data.count = gradient.numel();
    if (data.count > 0 && IsOffloaded(gradients_.back())) {
      data.values = offloaded_.Place(gradients_.back());
      data.device = &offloaded_;
      continue;
    }
    data.values = GradientAddress(gradients_.back());
    if (data.count > 0) data.device = devices_.Of(gradient);
  }
  return absl::OkStatus();
}

void NormGradients::Clear() {
  data_.clear();
  offloaded_.EndStep(/*is_complete=*/true);
  gradients_.clear();
}

}  // namespace terrace
