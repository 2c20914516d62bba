#include "runtime/torch/optimizer.h"

#include <c10/core/GradMode.h>
#include <torch/serialize/archive.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/parameters.h"

namespace terrace {
namespace {

constexpr char kLearningRateKey[] = "lr";

constexpr char kStateElsewhere[] =
    "the state of an offloaded optimizer is in its runtime and cannot be "
    "saved to or loaded from an archive";

}  // namespace

void OffloadedAdamWOptions::serialize(
    ::torch::serialize::InputArchive& archive) {
  c10::IValue value;
  archive.read(kLearningRateKey, value);
  learning_rate = value.toDouble();
}

void OffloadedAdamWOptions::serialize(
    ::torch::serialize::OutputArchive& archive) const {
  archive.write(kLearningRateKey, c10::IValue(learning_rate));
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Runtime& runtime, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  std::vector<ParameterSpec> specs;
  std::unordered_set<const void*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(ParameterSpec spec,
                             DescribeParameter(parameters[i], i));
    if (!seen.insert(parameters[i].unsafeGetTensorImpl()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", i, " is in the list twice"));
    }
    specs.push_back(std::move(spec));
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<OffloadedOptimizer> offloaded,
                           OffloadedOptimizer::Create(runtime, specs, options));
  std::unique_ptr<OffloadedAdamW> optimizer(new OffloadedAdamW(
      std::move(parameters), options.adam.learning_rate, std::move(offloaded)));
  optimizer->specs_ = std::move(specs);
  return optimizer;
}

OffloadedAdamW::OffloadedAdamW(std::vector<at::Tensor> parameters,
                               double learning_rate,
                               std::unique_ptr<OffloadedOptimizer> offloaded)
    : Optimizer(std::move(parameters),
                std::make_unique<OffloadedAdamWOptions>(learning_rate)),
      offloaded_(std::move(offloaded)) {
  // LibTorch 2.15's constructor replaces options of types it does not know.
  param_groups_.front().set_options(
      std::make_unique<OffloadedAdamWOptions>(learning_rate));
}

absl::Status OffloadedAdamW::TryStep() {
  if (param_groups().size() != 1 ||
      param_groups().front().params().size() != specs_.size()) {
    return absl::FailedPreconditionError(
        "an offloaded optimizer has the one group of parameters that it was "
        "made with; make another for more");
  }
  std::vector<at::Tensor>& parameters = param_groups().front().params();
  data_.clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(ParameterData data,
                             LocateParameter(parameters[i], specs_[i], i));
    data_.push_back(data);
  }
  StepArguments arguments;
  arguments.learning_rate = param_groups().front().options().get_lr();
  TERRACE_RETURN_IF_ERROR(
      offloaded_->Step(arguments, data_, absl::Now() + step_timeout_));
  // Written behind autograd's back: a graph that still holds the old values
  // must notice.
  if (!offloaded_->last_report().skipped) {
    for (const at::Tensor& parameter : parameters) {
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  return absl::OkStatus();
}

at::Tensor OffloadedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const absl::Status status = TryStep();
  TORCH_CHECK(status.ok(), std::string(status.message()));
  return loss;
}

void OffloadedAdamW::save(::torch::serialize::OutputArchive&) const {
  TORCH_CHECK(false, kStateElsewhere);
}

void OffloadedAdamW::load(::torch::serialize::InputArchive&) {
  TORCH_CHECK(false, kStateElsewhere);
}

}  // namespace terrace
