#include "libtorch/step/gathered/gathered_step.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/step/gathered/parameters.h"
#include "libtorch/step/late/update_net.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

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

std::string StepSource::Called(size_t place) const {
  return names == Names::kPlaces ? absl::StrCat(place)
                                 : absl::StrCat("'", specs[place].name, "'");
}

void GatheredStep::Expect(const std::vector<at::Tensor>& parameters,
                          size_t first) {
  shapes_.resize(first);
  for (const at::Tensor& parameter : parameters) {
    shapes_.emplace_back(parameter.sizes());
  }
}

absl::Status GatheredStep::Begin(const StepSource& from, bool goes_on) {
  Forget(goes_on);
  const size_t count = from.specs.size();
  if (from.parameters.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", from.parameters.size(), " parameters; the ",
                     "optimizer was made for ", count));
  }
  copies_.resize(count);
  gradients_.resize(count);
  data_.resize(count);
  return absl::OkStatus();
}

absl::Status GatheredStep::Gather(const StepSource& from,
                                  const std::vector<bool>& are_stepped,
                                  bool goes_on) {
  TERRACE_RETURN_IF_ERROR(Begin(from, goes_on));
  const at::NoGradGuard without_graph;
  for (size_t i = 0; i < data_.size(); ++i) {
    if (are_stepped[i] && from.parameters[i].grad().defined()) {
      TERRACE_RETURN_IF_ERROR(GatherOne(from, i));
    } else {
      // Any address but null does: a parameter without a gradient is not
      // touched, whatever it has become.
      data_[i].parameter = data_.data();
    }
  }
  return CheckApart(from);
}

absl::Status GatheredStep::GatherOne(const StepSource& from, size_t place) {
  TERRACE_ASSIGN_OR_RETURN(const at::Tensor target,
                           GatherParameter(from, place));
  TERRACE_ASSIGN_OR_RETURN(
      gradients_[place],
      ContiguousGradient(from.parameters[place], from.specs[place],
                         from.Called(place), Takes(from)));
  data_[place] = Locate(target, gradients_[place], from.devices.Of(target),
                        from.offloaded);
  places_.push_back(place);
  stepped_.push_back(from.parameters[place]);
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> GatheredStep::GatherParameter(const StepSource& from,
                                                         size_t place) {
  const at::Tensor& parameter = from.parameters[place];
  TERRACE_RETURN_IF_ERROR(CheckParameter(
      parameter, from.specs[place], from.Called(place), Takes(from),
      place < shapes_.size() ? &shapes_[place] : nullptr));
  if (parameter.has_storage()) {
    TERRACE_RETURN_IF_ERROR(UpdateNet::Get().Await(parameter.storage()));
  }
  if (parameter.is_contiguous()) return parameter;
  at::Tensor& copy = copies_[place];
  if (copy.defined()) {
    // As the last attempt gave it back, unless it was written since.
    copy.copy_(parameter.detach());
  } else {
    copy = parameter.detach().contiguous();
  }
  return copy;
}

// Parameters are updated at the same time, so none may share an element with
// another.
absl::Status GatheredStep::CheckApart(const StepSource& from) {
  const auto overlap = apart_.FindOverlap(stepped_);
  if (!overlap) return absl::OkStatus();
  return OverlapError(from.Called(places_[overlap->first]),
                      from.Called(places_[overlap->second]));
}

absl::Status GatheredStep::Release(const StepSource& from,
                                   LateArguments* arguments) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const size_t place = places_[i];
    Device* const device = data_[place].device;
    if (device != nullptr && device != from.offloaded) {
      return absl::UnimplementedError(
          absl::StrCat("overlap: parameter ", from.Called(place), " is on ",
                       stepped_[i].device().str(), "; only those in memory ",
                       "are updated after the step"));
    }
    if (stepped_[i].is_inference()) {
      return absl::UnimplementedError(
          absl::StrCat("overlap: parameter ", from.Called(place),
                       " is an inference tensor: a graph that holds its old "
                       "values could not notice the update"));
    }
    // A gradient without elements is waited for by nothing.
    const bool is_empty = from.specs[place].count == 0;
    arguments->parameters.push_back(
        {.place = static_cast<int>(place),
         .name = from.names == StepSource::Names::kPlaces
                     ? absl::StrCat(place)
                     : from.specs[place].name,
         .parameter = stepped_[i],
         .in_order = copies_[place],
         .gradient = is_empty ? at::Tensor() : gradients_[place]});
  }
  arguments->data = data_;
  arguments->offloaded = from.offloaded;
  if (from.offloaded != nullptr) from.offloaded->SetBeside(true);
  Forget(/*is_incomplete=*/false);
  return absl::OkStatus();
}

absl::Status GatheredStep::GatherParameters(
    const StepSource& from, const std::vector<bool>& are_stepped) {
  TERRACE_RETURN_IF_ERROR(Begin(from, /*goes_on=*/false));
  const at::NoGradGuard without_graph;
  for (size_t i = 0; i < data_.size(); ++i) {
    if (!are_stepped[i]) continue;
    TERRACE_ASSIGN_OR_RETURN(const at::Tensor target, GatherParameter(from, i));
    data_[i] = Locate(target, /*gradient=*/at::Tensor(),
                      from.devices.Of(target), from.offloaded);
    places_.push_back(i);
    stepped_.push_back(from.parameters[i]);
  }
  const absl::Status apart = CheckApart(from);
  places_.clear();  // stepped are those alone whose gradients come
  stepped_.clear();
  return apart;
}

absl::StatusOr<GradientData> GatheredStep::TakeGradient(
    const StepSource& from, size_t place, const at::Tensor& parameter) {
  const at::NoGradGuard without_graph;
  TERRACE_ASSIGN_OR_RETURN(
      const at::Tensor gradient,
      ContiguousGradient(parameter, from.specs[place], from.Called(place),
                         OffloadedTensors::kRefused));
  gradients_[place] = gradient;
  parameter.mutable_grad().reset();
  NoteWritten(parameter);
  places_.push_back(place);
  stepped_.push_back(parameter);
  // What is on a device has no address that the CPU can use.
  const bool is_placed = from.offloaded != nullptr && !gradient.is_cpu() &&
                         gradient.numel() > 0;
  const void* const values = is_placed ? from.offloaded->Place(gradient)
                                       : GradientAddress(gradient);
  data_[place].gradient = values;
  return GradientData{.values = values,
                      .dtype = *DTypeOf(gradient),
                      .count = gradient.numel()};
}

void GatheredStep::DropGradient(const StepSource& from, size_t place) {
  if (from.offloaded != nullptr) from.offloaded->Drop(data_[place].gradient);
  gradients_[place].reset();
}

void GatheredStep::Return(bool is_written, bool is_incomplete) {
  const at::NoGradGuard without_graph;
  for (size_t i = 0; is_written && i < places_.size(); ++i) {
    const at::Tensor& copy = copies_[places_[i]];
    if (copy.defined()) stepped_[i].detach().copy_(copy);
    NoteWritten(stepped_[i]);
  }
  Forget(is_incomplete);
}

void GatheredStep::Forget(bool is_incomplete) {
  if (!is_incomplete) copies_.clear();
  data_.clear();
  places_.clear();
  stepped_.clear();
  gradients_.clear();
}

}  // namespace terrace
