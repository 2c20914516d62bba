#include "libtorch/python/tensors.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/step/late/update_net.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

// What a gradient without elements points to: its storage may have none.
constexpr float kNothing = 0;

absl::Status Error(const char* what, const std::string& name,
                   const std::string& fault) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, "parameter '", name, "' ", fault));
}

// Of a parameter of this spec, with values of its own.
absl::StatusOr<at::Tensor> GradientOf(const ParameterSpec& spec,
                                      const at::Tensor& parameter,
                                      OffloadedTensors offloaded) {
  const at::Tensor gradient = WithOwnValues(parameter.grad());
  const std::string fault = StorageFault(gradient, offloaded);
  if (!fault.empty()) return Error("the gradient of ", spec.name, fault);
  const DType dtype = *DTypeOf(gradient);
  if (gradient.device() != parameter.device()) {
    return Error("the gradient of ", spec.name,
                 absl::StrCat("is on ", gradient.device().str(), ", not ",
                              parameter.device().str()));
  }
  if (gradient.sizes() != parameter.sizes() ||
      (dtype != DType::kFloat32 && dtype != spec.dtype)) {
    return Error(
        "the gradient of ", spec.name,
        absl::StrCat("is ", TextOf(gradient.sizes()), " of ",
                     TextOf(gradient.scalar_type()), ", not ",
                     TextOf(parameter.sizes()), " of ", DTypeName(spec.dtype)));
  }
  return gradient;
}

}  // namespace

absl::StatusOr<ParameterSpec> DescribeTensor(const at::Tensor& parameter,
                                             const std::string& name) {
  const std::string fault = StorageFault(parameter, OffloadedTensors::kTaken);
  if (!fault.empty()) return Error("", name, fault);
  ParameterSpec spec;
  spec.name = name;
  spec.dtype = *DTypeOf(parameter);
  spec.count = parameter.numel();
  spec.on_device = !parameter.is_cpu() || IsOffloaded(parameter);
  return spec;
}

absl::Status NormTensors::Locate(const std::vector<at::Tensor>& parameters) {
  Clear();
  const at::NoGradGuard without_graph;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = WithOwnValues(parameters[i].grad());
    GradientData data;
    if (gradient.defined()) {
      const std::string fault =
          StorageFault(gradient, OffloadedTensors::kTaken);
      if (!fault.empty()) {
        return Error("the gradient of ", absl::StrCat(i), fault);
      }
      // What is below is not brought before its turn.
      gradients_.push_back(
          (IsOffloaded(gradient) ? gradient : gradient.detach()).contiguous());
      data.dtype = *DTypeOf(gradient);
      data.count = gradient.numel();
      if (data.count == 0) {
        data.values = &kNothing;
      } else if (IsOffloaded(gradients_.back())) {
        data.values = offloaded_.Place(gradients_.back());
        data.device = &offloaded_;
      } else {
        data.values = gradients_.back().const_data_ptr();
        data.device = devices_.Of(gradient);
      }
    }
    data_.push_back(data);
  }
  return absl::OkStatus();
}

void NormTensors::Clear() {
  data_.clear();
  offloaded_.Forget();
  offloaded_.Prune();
  gradients_.clear();
}

void StepTensors::Expect(const std::vector<at::Tensor>& parameters,
                         size_t first) {
  shapes_.resize(first);
  for (const at::Tensor& parameter : parameters) {
    shapes_.emplace_back(parameter.sizes());
  }
}

absl::Status StepTensors::BeginLocate(size_t specs, size_t parameters) {
  Forget();
  if (parameters == specs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a step of ", parameters, " parameters; the ",
                   "optimizer was made for ", specs));
}

absl::Status StepTensors::Locate(absl::Span<const ParameterSpec> specs,
                                 const std::vector<at::Tensor>& parameters,
                                 absl::Span<const int64_t> groups, bool again) {
  if (!again) kept_.clear();
  TERRACE_RETURN_IF_ERROR(BeginLocate(specs.size(), parameters.size()));
  const at::NoGradGuard without_graph;
  data_.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(
        LocateOne(specs[i], parameters[i], groups[i] != kInNoGroup));
  }
  return CheckApart(specs);
}

absl::Status StepTensors::CheckApart(absl::Span<const ParameterSpec> specs) {
  if (const auto overlap = apart_.FindOverlap(stepped_)) {
    const auto name = [&](size_t i) {
      return absl::StrCat("'", specs[places_[i]].name, "'");
    };
    return OverlapError(name(overlap->first), name(overlap->second));
  }
  return absl::OkStatus();
}

absl::Status StepTensors::LocateOne(const ParameterSpec& spec,
                                    const at::Tensor& parameter,
                                    bool is_stepped) {
  const at::Tensor given = is_stepped ? parameter.grad() : at::Tensor();
  if (!given.defined()) {
    // Not touched in this step, whatever it has become.
    data_.push_back({.parameter = const_cast<float*>(&kNothing)});
    return absl::OkStatus();
  }
  TERRACE_ASSIGN_OR_RETURN(const at::Tensor target,
                           LocateParameter(spec, parameter));
  TERRACE_ASSIGN_OR_RETURN(
      const at::Tensor gradient,
      GradientOf(spec, parameter, OffloadedTensors::kTaken));
  ParameterData data;
  data.gradient_dtype = *DTypeOf(gradient);
  if (spec.count == 0) {
    data.parameter = target.data_ptr();
    data.gradient = &kNothing;
    gradients_.emplace_back();
  } else {
    // What is below is not brought before its turn.
    gradients_.push_back(
        (IsOffloaded(gradient) ? gradient : gradient.detach()).contiguous());
    Point(target, gradients_.back(), data);
  }
  places_.push_back(data_.size());
  data_.push_back(data);
  stepped_.push_back(parameter);
  return absl::OkStatus();
}

absl::Status StepTensors::Release(absl::Span<const ParameterSpec> specs,
                                  LateArguments* arguments) {
  for (size_t i = 0; i < stepped_.size(); ++i) {
    const size_t place = places_[i];
    Device* const device = data_[place].device;
    if (device != nullptr && device != &offloaded_) {
      return absl::UnimplementedError(
          absl::StrCat("overlap=True: parameter '", specs[place].name,
                       "' is on ", stepped_[i].device().str(),
                       "; those in CPU memory are updated after step()"));
    }
    if (stepped_[i].is_inference()) {
      return Error("", specs[place].name,
                   "is an inference tensor: overlap=True cannot tell a graph "
                   "that it is written");
    }
    arguments->parameters.push_back({.place = static_cast<int>(place),
                                     .name = specs[place].name,
                                     .parameter = stepped_[i],
                                     .gradient = gradients_[i]});
  }
  for (LateParameter& each : arguments->parameters) {
    for (const Staged& staged : staged_) {
      if (staged.index == static_cast<size_t>(each.place)) {
        each.in_order = staged.in_order;
      }
    }
  }
  arguments->data = data_;
  arguments->offloaded = &offloaded_;
  offloaded_.SetBeside(true);
  ForgetTensors();
  return absl::OkStatus();
}

void StepTensors::EndLate() {
  offloaded_.Forget();
  offloaded_.Prune();
  offloaded_.SetBeside(false);
}

absl::StatusOr<at::Tensor> StepTensors::LocateParameter(
    const ParameterSpec& spec, const at::Tensor& parameter) {
  const std::string fault = StorageFault(parameter, OffloadedTensors::kTaken);
  if (!fault.empty()) return Error("", spec.name, fault);
  TERRACE_RETURN_IF_ERROR(CheckForm(spec, parameter));
  if (parameter.has_storage()) {  // of another optimizer's step
    TERRACE_RETURN_IF_ERROR(UpdateNet::Get().Await(parameter.storage()));
  }
  at::Tensor target = parameter;
  if (!parameter.is_contiguous()) {
    target = InOrder(parameter, data_.size());
    staged_.push_back({parameter.detach(), target, data_.size()});
  }
  return target;
}

absl::Status StepTensors::LocateParameters(
    absl::Span<const ParameterSpec> specs,
    const std::vector<at::Tensor>& parameters,
    absl::Span<const int64_t> groups) {
  kept_.clear();
  TERRACE_RETURN_IF_ERROR(BeginLocate(specs.size(), parameters.size()));
  const at::NoGradGuard without_graph;
  supplied_.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    ParameterData data;
    if (groups[i] != kInNoGroup) {
      TERRACE_ASSIGN_OR_RETURN(const at::Tensor target,
                               LocateParameter(specs[i], parameters[i]));
      if (specs[i].count == 0) {
        data.parameter = const_cast<float*>(&kNothing);
      } else {
        Point(target, at::Tensor(), data);
      }
      stepped_.push_back(parameters[i]);
      places_.push_back(i);
    }
    data_.push_back(data);
  }
  const absl::Status apart = CheckApart(specs);
  stepped_.clear();
  return apart;
}

absl::StatusOr<GradientData> StepTensors::TakeGradient(
    const ParameterSpec& spec, const at::Tensor& parameter, size_t index) {
  const at::NoGradGuard without_graph;
  if (!parameter.grad().defined()) {
    return Error("", spec.name, "has no gradient");
  }
  TERRACE_ASSIGN_OR_RETURN(
      const at::Tensor gradient,
      GradientOf(spec, parameter, OffloadedTensors::kRefused));
  supplied_[index] = gradient.detach().contiguous();
  parameter.mutable_grad().reset();
  parameter.unsafeGetTensorImpl()->bump_version();
  stepped_.push_back(parameter);
  return GradientData{.values = spec.count == 0
                                    ? static_cast<const void*>(&kNothing)
                                    : supplied_[index].const_data_ptr(),
                      .dtype = *DTypeOf(gradient),
                      .count = spec.count};
}

void StepTensors::Point(const at::Tensor& parameter, const at::Tensor& gradient,
                        ParameterData& data) {
  if (offloaded_.Point(parameter, gradient, data)) return;
  data.parameter = parameter.data_ptr();
  data.device = devices_.Of(parameter);
  if (gradient.defined()) data.gradient = gradient.const_data_ptr();
}

absl::Status StepTensors::CheckForm(const ParameterSpec& spec,
                                    const at::Tensor& parameter) const {
  const at::IntArrayRef shape = shapes_[data_.size()];
  if (*DTypeOf(parameter) == spec.dtype && parameter.sizes() == shape) {
    return absl::OkStatus();
  }
  return Error(
      "", spec.name,
      absl::StrCat("was ", TextOf(shape), " of ", DTypeName(spec.dtype),
                   " and is ", TextOf(parameter.sizes()), " of ",
                   TextOf(parameter.scalar_type())));
}

at::Tensor StepTensors::InOrder(const at::Tensor& parameter,
                                size_t index) const {
  for (const Staged& kept : kept_) {
    if (kept.index != index) continue;
    // As the last attempt gave it back, unless it was written since.
    kept.in_order.copy_(parameter.detach());
    return kept.in_order;
  }
  return parameter.detach().contiguous();
}

void StepTensors::Return(bool written, bool incomplete) {
  const at::NoGradGuard without_graph;
  for (const Staged& staged : staged_) {
    // Through a detached tensor, so that the version counter is ours to bump.
    if (written) staged.parameter.copy_(staged.in_order);
  }
  if (written) {
    // Written behind autograd's back: a graph that still holds the old values
    // must notice.
    for (const at::Tensor& parameter : stepped_) {
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  kept_.clear();
  if (incomplete) kept_ = std::move(staged_);
  Forget();
  if (!incomplete) offloaded_.Prune();
}

void StepTensors::Forget() {
  offloaded_.Forget();
  offloaded_.SetBeside(false);
  ForgetTensors();
}

void StepTensors::ForgetTensors() {
  data_.clear();
  stepped_.clear();
  places_.clear();
  gradients_.clear();
  supplied_.clear();
  staged_.clear();
}

}  // namespace terrace
