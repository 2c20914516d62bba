#include "libtorch/step/gathered/gathered_step.h"

#include "base/status_macros.h"
#include "libtorch/step/gathered/groups.h"
#include "libtorch/step/gathered/parameters.h"
#include "libtorch/step/late/update_net.h"

namespace terrace {
namespace {

using Group = ::torch::optim::OptimizerParamGroup;

OffloadedTensors Takes(const StepSource& from) {
  return from.offloaded == nullptr ? OffloadedTensors::kRefused
                                   : OffloadedTensors::kTaken;
}

// A step writes the parameter behind autograd's back, and a graph that still
// holds the old values must notice.
void NoteWritten(const at::Tensor& parameter) {
  if (parameter.is_inference()) return;
  parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

absl::StatusOr<std::vector<AdamOptions>> OptionsByPlace(
    const StepSource& from) {
  std::vector<AdamOptions> all(from.known.tensors().size());
  for (size_t i = 0; i < from.groups.size(); ++i) {
    const Group& group = from.groups[i];
    TERRACE_ASSIGN_OR_RETURN(AdamOptions options,
                             ReadGroup(from.mode, group, i));
    options.bias_correction = from.bias_correction;
    for (const at::Tensor& parameter : group.params()) {
      const int place = from.known.IndexOf(parameter);
      if (place >= 0) all[static_cast<size_t>(place)] = options;
    }
  }
  return all;
}

absl::Status GatheredStep::Gather(const StepSource& from, bool goes_on) {
  if (!goes_on) staged_.clear();
  TERRACE_RETURN_IF_ERROR(Begin(from));
  const std::vector<at::Tensor>& tensors = from.known.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (present_[i] && tensors[i].grad().defined()) {
      TERRACE_RETURN_IF_ERROR(GatherOne(from, i));
    } else {
      // Any address but null does: a parameter without a gradient is not
      // touched.
      data_[i].parameter = data_.data();
    }
  }
  return absl::OkStatus();
}

absl::Status GatheredStep::Begin(const StepSource& from) {
  const size_t count = from.known.tensors().size();
  staged_.resize(count);
  gradients_.assign(count, at::Tensor());
  data_.assign(count, ParameterData());
  present_.assign(count, false);
  TERRACE_ASSIGN_OR_RETURN(options_, OptionsByPlace(from));
  for (const Group& group : from.groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.has_storage()) {  // another optimizer may update it
        TERRACE_RETURN_IF_ERROR(UpdateNet::Get().Await(parameter.storage()));
      }
      present_[static_cast<size_t>(from.known.IndexOf(parameter))] = true;
    }
  }
  return from.known.CheckApart();
}

absl::Status GatheredStep::GatherOne(const StepSource& from, size_t place) {
  TERRACE_RETURN_IF_ERROR(GatherParameter(from, place));
  TERRACE_ASSIGN_OR_RETURN(
      gradients_[place],
      ContiguousGradient(from.known.tensors()[place], from.specs[place], place,
                         Takes(from)));
  const at::Tensor& stepped = Stepped(from, place);
  data_[place] = Locate(stepped, gradients_[place], from.devices.Of(stepped),
                        from.offloaded);
  return absl::OkStatus();
}

absl::Status GatheredStep::GatherParameter(const StepSource& from,
                                           size_t place) {
  const at::Tensor& parameter = from.known.tensors()[place];
  TERRACE_RETURN_IF_ERROR(
      CheckParameter(parameter, from.specs[place], place, Takes(from)));
  if (!parameter.is_contiguous() && !staged_[place].defined()) {
    staged_[place] = parameter.detach().contiguous();
  }
  return absl::OkStatus();
}

const at::Tensor& GatheredStep::Stepped(const StepSource& from,
                                        size_t place) const {
  return staged_[place].defined() ? staged_[place]
                                  : from.known.tensors()[place];
}

void GatheredStep::Publish(const KnownParameters& known) {
  for (size_t i = 0; i < data_.size(); ++i) {
    if (data_[i].gradient != nullptr) PublishOne(known.tensors()[i], i);
  }
  staged_.clear();
}

void GatheredStep::PublishOne(const at::Tensor& parameter, size_t place) {
  staged_[place].defined() ? static_cast<void>(parameter.copy_(staged_[place]))
                           : NoteWritten(parameter);
}

absl::Status GatheredStep::GatherParameters(const StepSource& from) {
  staged_.clear();
  TERRACE_RETURN_IF_ERROR(Begin(from));
  const std::vector<at::Tensor>& tensors = from.known.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!present_[i] || !tensors[i].requires_grad()) continue;
    TERRACE_RETURN_IF_ERROR(GatherParameter(from, i));
    const at::Tensor& stepped = Stepped(from, i);
    data_[i] = Locate(stepped, /*gradient=*/at::Tensor(),
                      from.devices.Of(stepped), from.offloaded);
  }
  return absl::OkStatus();
}

absl::StatusOr<GradientData> GatheredStep::TakeGradient(const StepSource& from,
                                                        size_t place) {
  const at::Tensor& parameter = from.known.tensors()[place];
  TERRACE_ASSIGN_OR_RETURN(
      gradients_[place], ContiguousGradient(parameter, from.specs[place], place,
                                            OffloadedTensors::kRefused));
  parameter.mutable_grad().reset();
  NoteWritten(parameter);
  const at::Tensor& taken = gradients_[place];
  return GradientData{.values = GradientAddress(taken),
                      .dtype = *DTypeOf(taken),
                      .count = taken.numel()};
}

void GatheredStep::PublishTaken(const KnownParameters& known,
                                const std::vector<bool>& taken) {
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) PublishOne(known.tensors()[i], i);
  }
  staged_.clear();
}

void GatheredStep::Clear() {
  data_.clear();
  staged_.clear();
  gradients_.clear();
}

}  // namespace terrace
