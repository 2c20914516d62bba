#include "terrace/torch/optimizer.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/late/late_steps.h"
#include "runtime/torch/late/update_net.h"
#include "runtime/torch/optimizer/parameters.h"
#include "runtime/torch/tensors_apart.h"
#include "runtime/torch/torch_device.h"

namespace terrace {
namespace {

using Group = ::torch::optim::OptimizerParamGroup;

// LibTorch throws; its errors end here.
template <typename Work>
absl::Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat("LibTorch: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("LibTorch: ", error.what()));
  }
}

// Made once, so that every parameter of a group has options of its own.
AdamOptions Defaults(const OptimizerOptions& options, AdamMode mode) {
  AdamOptions adam = options.adam;
  adam.decoupled_decay = mode == AdamMode::kAdamW;
  return adam;
}

absl::StatusOr<AdamOptions> ReadGroup(AdamMode mode, const Group& group,
                                      size_t position) {
  absl::StatusOr<AdamOptions> options = ReadGroupOptions(mode, group.options());
  if (options.ok()) return options;
  return absl::Status(options.status().code(),
                      absl::StrCat("parameter group ", position, " ",
                                   options.status().message()));
}

}  // namespace

OffloadedAdamBase::OffloadedAdamBase(AdamMode mode,
                                     const std::vector<Group>& groups,
                                     const OptimizerOptions& options)
    : Optimizer(groups, MakeGroupOptions(mode, Defaults(options, mode))),
      mode_(mode),
      bias_correction_(options.adam.bias_correction) {
  devices_.push_back(std::make_unique<TensorDevices>());
  apart_ = std::make_unique<TensorsApart>();
}

OffloadedAdamBase::~OffloadedAdamBase() = default;

void OffloadedAdamBase::set_devices(
    std::function<std::unique_ptr<Device>(c10::Device)> choose) {
  devices_.push_back(std::make_unique<TensorDevices>(std::move(choose)));
}

absl::Status OffloadedAdamBase::CheckGroups(AdamMode mode,
                                            const std::vector<Group>& groups) {
  size_t position = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].has_options()) {
      TERRACE_RETURN_IF_ERROR(ReadGroup(mode, groups[i], i).status());
    }
    for (const at::Tensor& parameter : groups[i].params()) {
      TERRACE_RETURN_IF_ERROR(DescribeParameter(parameter, position).status());
      ++position;
    }
  }
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::Open(Runtime& runtime,
                                     const OptimizerOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(offloaded_,
                           OffloadedOptimizer::Create(runtime, {}, options));
  late_ = std::make_unique<LateSteps>(*offloaded_);
  return AdoptParameters();
}

// Parameters that groups have got since the last call.
absl::Status OffloadedAdamBase::AdoptParameters() {
  std::unordered_map<const c10::TensorImpl*, size_t> positions;
  std::vector<at::Tensor> added;
  std::vector<ParameterSpec> specs;
  size_t position = 0;
  for (const Group& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const c10::TensorImpl* const key = parameter.unsafeGetTensorImpl();
      const auto [found, first] = positions.emplace(key, position);
      if (!first) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameters ", found->second, " and ", position,
                         " are the same tensor"));
      }
      if (indices_.find(key) == indices_.end()) {
        TERRACE_ASSIGN_OR_RETURN(ParameterSpec spec,
                                 DescribeParameter(parameter, position));
        // Each has options of its own: a group may change its members.
        const size_t index = tensors_.size() + added.size();
        spec.name = absl::StrCat("parameter", index);
        spec.group = static_cast<int>(index);
        specs.push_back(std::move(spec));
        added.push_back(parameter);
      }
      ++position;
    }
  }
  if (added.empty()) return absl::OkStatus();
  std::vector<at::Tensor> all = tensors_;
  all.insert(all.end(), added.begin(), added.end());
  TERRACE_RETURN_IF_ERROR(CheckApart(all));
  TERRACE_RETURN_IF_ERROR(offloaded_->AddParameters(std::move(specs)));
  for (at::Tensor& parameter : added) {
    indices_.emplace(parameter.unsafeGetTensorImpl(),
                     static_cast<int>(tensors_.size()));
    tensors_.push_back(std::move(parameter));
  }
  return absl::OkStatus();
}

// Parameters are updated at the same time, so none may share an element with
// another.
absl::Status OffloadedAdamBase::CheckApart(
    absl::Span<const at::Tensor> tensors) {
  const auto overlap = apart_->FindOverlap(tensors);
  if (!overlap) return absl::OkStatus();
  return OverlapError(absl::StrCat(overlap->first),
                      absl::StrCat(overlap->second));
}

// Addresses and options of this step.
absl::Status OffloadedAdamBase::Gather() {
  if (!offloaded_->incomplete()) staged_.clear();
  staged_.resize(tensors_.size());
  gradients_.assign(tensors_.size(), at::Tensor());
  data_.assign(tensors_.size(), ParameterData());
  adam_options_.assign(tensors_.size(), AdamOptions());
  std::vector<bool> present(tensors_.size(), false);
  for (size_t i = 0; i < param_groups().size(); ++i) {
    const Group& group = param_groups()[i];
    TERRACE_ASSIGN_OR_RETURN(AdamOptions options, ReadGroup(mode_, group, i));
    options.bias_correction = bias_correction_;
    for (const at::Tensor& parameter : group.params()) {
      const auto index = static_cast<size_t>(IndexOf(parameter));
      if (parameter.has_storage()) {  // of another optimizer's step
        TERRACE_RETURN_IF_ERROR(UpdateNet::Get().Await(parameter.storage()));
      }
      adam_options_[index] = options;
      present[index] = true;
    }
  }
  TERRACE_RETURN_IF_ERROR(CheckApart(tensors_));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (present[i] && tensors_[i].grad().defined()) {
      TERRACE_RETURN_IF_ERROR(GatherOne(i));
    } else {
      // Anything but null: it is not touched without a gradient.
      data_[i].parameter = tensors_.data();
    }
  }
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::GatherOne(size_t index) {
  const at::Tensor& parameter = tensors_[index];
  const ParameterSpec& spec = offloaded_->parameters()[index];
  TERRACE_RETURN_IF_ERROR(CheckParameter(parameter, spec, index));
  TERRACE_ASSIGN_OR_RETURN(gradients_[index],
                           ContiguousGradient(parameter, spec, index));
  if (!parameter.is_contiguous() && !staged_[index].defined()) {
    staged_[index] = parameter.detach().contiguous();
  }
  const at::Tensor& used =
      staged_[index].defined() ? staged_[index] : parameter;
  data_[index] = Locate(used, gradients_[index], devices_.back()->Of(used));
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::TryStep(const StepArguments& arguments) {
  if (arguments.learning_rate || !arguments.groups.empty()) {
    return absl::InvalidArgumentError(
        "learning rate and options are those of the parameter groups");
  }
  TERRACE_RETURN_IF_ERROR(Flush());
  at::NoGradGuard no_gradients;
  absl::Status status = Guarded([this] {
    TERRACE_RETURN_IF_ERROR(AdoptParameters());
    return Gather();
  });
  if (status.ok()) {
    const bool is_late = overlap_ && !offloaded_->incomplete();
    status = Guarded(
        [&] { return is_late ? StepLate(arguments) : StepNow(arguments); });
  }
  gradients_.clear();
  return status;
}

absl::Status OffloadedAdamBase::StepNow(const StepArguments& arguments) {
  StepArguments resolved = arguments;
  resolved.groups = adam_options_;
  TERRACE_RETURN_IF_ERROR(offloaded_->Step(resolved, data_, Deadline()));
  if (!offloaded_->last_report().skipped) Publish();
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::StepLate(const StepArguments& arguments) {
  if (arguments.norm_gradients) {
    return absl::UnimplementedError(
        "overlap: norm_gradients would have to be there until the updates have "
        "ended");
  }
  LateArguments late{.groups = adam_options_,
                     .loss_scale = arguments.loss_scale,
                     .max_gradient_norm = arguments.max_gradient_norm,
                     .skip_nonfinite = arguments.skip_nonfinite,
                     .patience = step_timeout_,
                     .data = data_};
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (data_[i].gradient == nullptr) continue;
    if (data_[i].device != nullptr) {
      return absl::UnimplementedError(absl::StrCat(
          "overlap: parameter ", i, " is on ", tensors_[i].device().str(),
          "; only those in memory are updated after the step"));
    }
    if (tensors_[i].is_inference()) {
      return absl::UnimplementedError(
          absl::StrCat("overlap: parameter ", i,
                       " is an inference tensor: a graph that "
                       "holds its old values could not notice the update"));
    }
    // What its gradient is now, whatever .grad becomes.
    at::Tensor gradient;
    if (tensors_[i].numel() > 0) gradient = gradients_[i].detach();
    late.parameters.push_back({.place = static_cast<int>(i),
                               .name = absl::StrCat(i),
                               .parameter = tensors_[i],
                               .in_order = staged_[i],
                               .gradient = std::move(gradient)});
  }
  TERRACE_RETURN_IF_ERROR(late_->Begin(std::move(late)));
  staged_.clear();
  return absl::OkStatus();
}

absl::Status OffloadedAdamBase::Flush(absl::Time deadline) {
  return Guarded([&] { return late_->Finish(deadline); });
}

OffloadedOptimizer& OffloadedAdamBase::offloaded() {
  late_->Wait().IgnoreError();  // Settle tells
  return *offloaded_;
}

// Parameters were written behind autograd's back: a graph that still holds the
// old values must notice.
void OffloadedAdamBase::Publish() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (data_[i].gradient == nullptr) continue;
    if (staged_[i].defined()) {
      tensors_[i].copy_(staged_[i]);
    } else if (!tensors_[i].is_inference()) {
      tensors_[i].unsafeGetTensorImpl()->bump_version();
    }
  }
  staged_.clear();
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

int OffloadedAdamBase::IndexOf(const at::Tensor& parameter) const {
  const auto found = indices_.find(parameter.unsafeGetTensorImpl());
  return found == indices_.end() ? -1 : found->second;
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Runtime& runtime, std::vector<Group> groups,
    const OptimizerOptions& options) {
  std::unique_ptr<OffloadedAdamW> optimizer;
  absl::Status status = Guarded([&] {
    absl::Status checked = CheckGroups(AdamMode::kAdamW, groups);
    if (!checked.ok()) return checked;
    optimizer.reset(new OffloadedAdamW(AdamMode::kAdamW, groups, options));
    return optimizer->Open(runtime, options);
  });
  if (!status.ok()) return status;
  return optimizer;
}

absl::StatusOr<std::unique_ptr<OffloadedAdamW>> OffloadedAdamW::Create(
    Runtime& runtime, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Create(runtime, {Group(std::move(parameters))}, options);
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Runtime& runtime, std::vector<Group> groups,
    const OptimizerOptions& options) {
  std::unique_ptr<OffloadedAdam> optimizer;
  absl::Status status = Guarded([&] {
    absl::Status checked = CheckGroups(AdamMode::kAdam, groups);
    if (!checked.ok()) return checked;
    optimizer.reset(new OffloadedAdam(AdamMode::kAdam, groups, options));
    return optimizer->Open(runtime, options);
  });
  if (!status.ok()) return status;
  return optimizer;
}

absl::StatusOr<std::unique_ptr<OffloadedAdam>> OffloadedAdam::Create(
    Runtime& runtime, std::vector<at::Tensor> parameters,
    const OptimizerOptions& options) {
  return Create(runtime, {Group(std::move(parameters))}, options);
}

}  // namespace terrace
