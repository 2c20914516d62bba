#include "terrace/torch/group_options.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <tuple>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

template <typename Options>
std::unique_ptr<::torch::optim::OptimizerOptions> Make(
    const AdamOptions& options) {
  auto made = std::make_unique<Options>(options.learning_rate);
  made->betas({options.beta1, options.beta2});
  made->eps(options.epsilon);
  made->weight_decay(options.weight_decay);
  return made;
}

template <typename Options>
absl::StatusOr<AdamOptions> Read(
    const ::torch::optim::OptimizerOptions& options, bool decoupled_decay,
    const char* name) {
  const auto* const typed = dynamic_cast<const Options*>(&options);
  if (typed == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("has options of another type than ", name));
  }
  if (typed->amsgrad()) {
    return absl::InvalidArgumentError(
        "asks for amsgrad, which an offloaded optimizer does not have");
  }
  return AdamOptions{.learning_rate = typed->lr(),
                     .beta1 = std::get<0>(typed->betas()),
                     .beta2 = std::get<1>(typed->betas()),
                     .epsilon = typed->eps(),
                     .weight_decay = typed->weight_decay(),
                     .decoupled_decay = decoupled_decay};
}

}  // namespace

std::unique_ptr<::torch::optim::OptimizerOptions> MakeGroupOptions(
    AdamMode mode, const AdamOptions& options) {
  return mode == AdamMode::kAdamW ? Make<::torch::optim::AdamWOptions>(options)
                                  : Make<::torch::optim::AdamOptions>(options);
}

absl::StatusOr<AdamOptions> ReadGroupOptions(
    AdamMode mode, const ::torch::optim::OptimizerOptions& options) {
  if (mode == AdamMode::kAdamW) {
    return Read<::torch::optim::AdamWOptions>(options, true, "AdamWOptions");
  }
  return Read<::torch::optim::AdamOptions>(options, false, "AdamOptions");
}

}  // namespace terrace
