#include "terrace/torch/optimizer.h"

#include <c10/core/GradMode.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/optimizer/joined_offload.h"
#include "libtorch/step/gathered/gathered_step.h"
#include "libtorch/step/gathered/groups.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/step/in_backward/in_backward_steps.h"
#include "libtorch/step/late/late_steps.h"
#include "libtorch/torch_device.h"
#include "terrace/torch/offload.h"

namespace terrace {
namespace {

using Group = ::torch::optim::OptimizerParamGroup;

OffloadedTensors Takes(bool may_be_offloaded) {
  return may_be_offloaded ? OffloadedTensors::kTaken
                          : OffloadedTensors::kRefused;
}

// Made once, so that every parameter of a group has options of its own.
AdamOptions Defaults(const OptimizerOptions& options, AdamMode mode) {
  AdamOptions adam = options.adam;
  adam.decoupled_decay = mode == AdamMode::kAdamW;
  return adam;
}

}  // namespace

OffloadedAdamBase::OffloadedAdamBase(AdamMode mode,
                                     const std::vector<Group>& groups,
                                     const OptimizerOptions& options)
    : Optimizer(groups, MakeGroupOptions(mode, Defaults(options, mode))),
      mode_(mode),
      bias_correction_(options.adam.bias_correction),
      clips_(options.max_gradient_norm > 0 || options.skip_nonfinite),
      known_(std::make_unique<KnownParameters>()),
      gathered_(std::make_unique<GatheredStep>()) {
  devices_.push_back(std::make_unique<TensorDevices>());
}

OffloadedAdamBase::~OffloadedAdamBase() = default;

void OffloadedAdamBase::set_devices(
    std::function<std::unique_ptr<Device>(c10::Device)> choose) {
  devices_.push_back(std::make_unique<TensorDevices>(std::move(choose)));
}

absl::Status OffloadedAdamBase::Open(Runtime& runtime,
                                     OptimizerOptions options) {
  TERRACE_ASSIGN_OR_RETURN(offloaded_,
                           OffloadedOptimizer::Create(runtime, {}, options));
  late_ = std::make_unique<LateSteps>(*offloaded_);
  return AdoptParameters();
}

absl::Status OffloadedAdamBase::Open(Offload& offload,
                                     OptimizerOptions options) {
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<OffloadPlace> place,
                           offload.Place());
  TERRACE_ASSIGN_OR_RETURN(
      KnownParameters::Added added,
      known_->FindAdded(param_groups(), OffloadedTensors::kTaken));
  if (added.tensors.empty()) {
    return absl::InvalidArgumentError(
        "an optimizer without parameters has nothing to join a model for");
  }
  TERRACE_ASSIGN_OR_RETURN(
      joined_,
      JoinedOffload::Join(
          std::move(place), added.tensors, added.specs, options,
          {.flush = [this](absl::Time deadline) { return Flush(deadline); },
           .close = [this] { return EndWithOffload(); }}));
  TERRACE_ASSIGN_OR_RETURN(
      offloaded_, OffloadedOptimizer::Create(joined_->runtime(),
                                             std::move(added.specs), options));
  late_ = std::make_unique<LateSteps>(*offloaded_);
  TERRACE_RETURN_IF_ERROR(joined_->Watch(added.tensors));
  known_->Append(std::move(added.tensors));
  overlap_ = true;
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::CheckOpen() const {
  if (offloaded_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this optimizer is closed: the Offload that it joined is");
}

absl::Status OffloadedAdamBase::EndWithOffload() {
  absl::Status status;
  if (in_backward_ != nullptr) status = in_backward_->Check("the model ends");
  in_backward_.reset();
  if (status.ok() && offloaded_->incomplete() && !step_failure_.ok()) {
    status = Reworded(step_failure_,
                      absl::StrCat("a step is incomplete, and some parameters "
                                   "are those before it: ",
                                   step_failure_.message()));
  }
  late_.reset();
  gathered_->Forget(/*is_incomplete=*/false);
  offloaded_.reset();
  return Both(status, joined_->Leave());
}

// Parameters that groups have got since the last call.
absl::Status OffloadedAdamBase::AdoptParameters() {
  TERRACE_ASSIGN_OR_RETURN(
      KnownParameters::Added added,
      known_->FindAdded(param_groups(), Takes(joined_ != nullptr)));
  if (added.tensors.empty()) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(
      joined_ == nullptr ? offloaded_->AddParameters(std::move(added.specs))
                         : joined_->Extend(*offloaded_, added.tensors,
                                           std::move(added.specs)));
  known_->Append(std::move(added.tensors));
  return absl::OkStatus();
}

StepSource OffloadedAdamBase::Source() {
  return {.specs = offloaded_->parameters(),
          .parameters = known_->tensors(),
          .devices = *devices_.back(),
          .offloaded = joined_ == nullptr ? nullptr : &joined_->device()};
}

absl::Status OffloadedAdamBase::TryStep(const StepArguments& arguments) {
  if (arguments.learning_rate || !arguments.groups.empty()) {
    return absl::InvalidArgumentError(
        "learning rate and options are those of the parameter groups");
  }
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  TERRACE_RETURN_IF_ERROR(Flush());
  at::NoGradGuard no_gradients;
  const absl::Status status = Guarded([&]() -> absl::Status {
    if (in_backward_ != nullptr) return StepInBackward(arguments);
    TERRACE_RETURN_IF_ERROR(AdoptParameters());
    TERRACE_RETURN_IF_ERROR(gathered_->Gather(
        Source(), known_->AreIn(param_groups()), offloaded_->incomplete()));
    const bool is_late = overlap_ && !offloaded_->incomplete();
    return is_late ? StepLate(arguments) : StepNow(arguments);
  });
  gathered_->Forget(!late_->HasStep() && offloaded_->incomplete());
  TidyUp();
  return status;
}

void OffloadedAdamBase::TidyUp() {
  if (joined_ == nullptr || late_->HasStep()) return;
  if (in_backward_ != nullptr && in_backward_->has_begun()) return;
  joined_->EndStep(!offloaded_->incomplete());
}

absl::Status OffloadedAdamBase::StepNow(const StepArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(
      const std::vector<AdamOptions> options,
      OptionsByPlace(mode_, bias_correction_, param_groups(), *known_));
  StepArguments resolved = arguments;
  resolved.groups = options;
  step_failure_ = offloaded_->Step(resolved, gathered_->data(), Deadline());
  const bool is_incomplete = offloaded_->incomplete();
  // A step that failed may have written some of them.
  gathered_->Return(
      step_failure_.ok() ? !offloaded_->last_report().skipped : is_incomplete,
      is_incomplete);
  return step_failure_;
}

absl::Status OffloadedAdamBase::StepLate(const StepArguments& arguments) {
  if (arguments.norm_gradients) {
    return absl::UnimplementedError(
        "overlap: norm_gradients would have to be there until the updates have "
        "ended");
  }
  LateArguments late{.loss_scale = arguments.loss_scale,
                     .max_gradient_norm = arguments.max_gradient_norm,
                     .skip_nonfinite = arguments.skip_nonfinite,
                     .patience = step_timeout_};
  TERRACE_ASSIGN_OR_RETURN(
      late.groups,
      OptionsByPlace(mode_, bias_correction_, param_groups(), *known_));
  TERRACE_RETURN_IF_ERROR(gathered_->Release(Source(), &late));
  return late_->Begin(std::move(late));
}

absl::Status OffloadedAdamBase::Flush(absl::Time deadline) {
  if (late_ == nullptr) return absl::OkStatus();
  const absl::Status status = Guarded([&] { return late_->Flush(deadline); });
  TidyUp();
  return status;
}

OffloadedOptimizer& OffloadedAdamBase::offloaded() {
  TERRACE_CHECK(offloaded_ != nullptr);
  late_->Wait().IgnoreError();  // Settle tells
  return *offloaded_;
}

at::Tensor OffloadedAdamBase::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const absl::Status status = TryStep();
  TORCH_CHECK(status.ok(), std::string(status.message()));
  return loss;
}

template <typename Optimizer, typename Home>
absl::StatusOr<std::unique_ptr<Optimizer>> OffloadedAdamBase::Make(
    AdamMode mode, Home& home, const std::vector<Group>& groups,
    const OptimizerOptions& options) {
  std::unique_ptr<Optimizer> optimizer;
  absl::Status status = Guarded([&] {
    absl::Status checked =
        CheckGroups(mode, groups, Takes(std::is_same_v<Home, Offload>));
    if (!checked.ok()) return checked;
    optimizer.reset(new Optimizer(mode, groups, options));
    return optimizer->Open(home, options);
  });
  if (!status.ok()) return status;
  return optimizer;
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Runtime& runtime, std::vector<Group> groups,
    const OptimizerOptions& options) {
  return Make<OffloadedAdamW>(AdamMode::kAdamW, runtime, groups, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Runtime& runtime, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Make<OffloadedAdamW>(AdamMode::kAdamW, runtime,
                              {Group(std::move(parameters))}, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Offload& offload, std::vector<Group> groups,
    const OptimizerOptions& options) {
  return Make<OffloadedAdamW>(AdamMode::kAdamW, offload, groups, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Offload& offload, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Make<OffloadedAdamW>(AdamMode::kAdamW, offload,
                              {Group(std::move(parameters))}, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Runtime& runtime, std::vector<Group> groups,
    const OptimizerOptions& options) {
  return Make<OffloadedAdam>(AdamMode::kAdam, runtime, groups, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Runtime& runtime, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Make<OffloadedAdam>(AdamMode::kAdam, runtime,
                             {Group(std::move(parameters))}, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Offload& offload, std::vector<Group> groups,
    const OptimizerOptions& options) {
  return Make<OffloadedAdam>(AdamMode::kAdam, offload, groups, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Offload& offload, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Make<OffloadedAdam>(AdamMode::kAdam, offload,
                             {Group(std::move(parameters))}, options);
}

}  // namespace terrace
