#include "examples/train_gpt/parameter_place.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace train_gpt {
namespace {

// The module of a dotted name's last part, made where it is missing.
::torch::nn::Module& ModuleOf(::torch::nn::Module& root,
                              const std::vector<std::string>& parts) {
  ::torch::nn::Module* module = &root;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const auto children = module->named_children();
    const auto* child = children.find(parts[i]);
    module = child != nullptr
                 ? child->get()
                 : module
                       ->register_module(
                           parts[i], std::make_shared<::torch::nn::Module>())
                       .get();
  }
  return *module;
}

// With what the user said of it.
absl::Status Told(const Flags& flags, const absl::Status& status) {
  const bool is_budget =
      absl::IsResourceExhausted(status) && flags.budget.bytes > 0;
  return absl::Status(
      status.code(),
      is_budget ? absl::StrCat("--memory-budget: ", status.message())
                : absl::StrCat(
                      "--config ", flags.config,
                      ": zero_optimization.offload_param: ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterPlace>> ParameterPlace::Create(
    const Flags& flags, Gpt& model) {
  std::unique_ptr<ParameterPlace> place(new ParameterPlace);
  place->module_ = std::make_unique<::torch::nn::Module>();
  for (const Gpt::Parameter& parameter : model.parameters()) {
    const std::vector<std::string> parts = absl::StrSplit(parameter.name, '.');
    ModuleOf(*place->module_, parts)
        .register_parameter(parts.back(), parameter.tensor);
  }
  terrace::OffloadOptions options;
  options.nvme_paths = flags.parameter_paths;
  options.daemon = flags.parameter_daemon;
  if (!options.daemon.empty()) options.job = flags.job;
  options.memory_budget_bytes = flags.budget.bytes;
  options.memory_budget_share = flags.budget.percent / 100;
  options.engine = flags.engine;
  options.threads = flags.update_threads;
  options.machine_profile = flags.machine_profile;
  options.unsafe_media = flags.unsafe_media;
  auto offload = terrace::Offload::Create(*place->module_, options);
  if (!offload.ok()) return Told(flags, offload.status());
  place->offload_ = *std::move(offload);
  return place;
}

ParameterPlace::~ParameterPlace() = default;

absl::Status ParameterPlace::Close() {
  return offload_->Close(terrace::Offload::AtClose::kRestore);
}

}  // namespace train_gpt
