// What a step takes of LibTorch's groups and tensors, by the parameters'
// places: the options and addresses of terrace/optimizer.h.
//
//   status = gathered.Gather(source, /*goes_on=*/false);
//   status = optimizer.Step({.groups = gathered.options()}, gathered.data(),
//                           deadline);
//   gathered.Publish();
//
// A parameter whose elements do not lie in order is copied into order for the
// step, and back after it; so is a gradient. All others are used where they
// are.
//
// Thread-compatible. Keeps what addresses point into alive until the next
// Gather or Clear.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/step/gathered/known_parameters.h"
#include "libtorch/tensor_check.h"
#include "libtorch/torch_device.h"
#include "terrace/optimizer.h"
#include "terrace/torch/group_options.h"

namespace terrace {

// What an optimizer gathers from. All that it refers to outlives the call.
struct StepSource {
  AdamMode mode = AdamMode::kAdamW;
  bool bias_correction = true;
  const std::vector<::torch::optim::OptimizerParamGroup>& groups;
  KnownParameters& known;
  absl::Span<const ParameterSpec> specs;  // of those that are known
  TensorDevices& devices;
  OffloadedDevice* offloaded;  // null: what is offloaded is refused
};

// As groups say them, by the place; of what is in none the default.
// InvalidArgument: as ReadGroup.
absl::StatusOr<std::vector<AdamOptions>> OptionsByPlace(const StepSource& from);

class GatheredStep {
 public:
  // Those that are in a group and have a gradient; of all others the gradient
  // is null. `goes_on`: another attempt at the step before, whose copies of
  // parameters stay. InvalidArgument, by the place: options, a parameter or a
  // gradient that cannot be; LibTorch's exceptions come through.
  absl::Status Gather(const StepSource& from, bool goes_on);

  absl::Span<const AdamOptions> options() const { return options_; }
  absl::Span<const ParameterData> data() const { return data_; }
  // Copies in order, or undefined.
  const at::Tensor& staged(size_t place) const { return staged_[place]; }
  // Contiguous; undefined: there is none.
  const at::Tensor& gradient(size_t place) const { return gradients_[place]; }

  // The step has ended well: copies of parameters go back, and autograd learns
  // which were written.
  void Publish(const KnownParameters& known);

  // Of a GradualStep: those that are in a group and require a gradient, which
  // comes later; of all others the parameter is null. Likewise.
  absl::Status GatherParameters(const StepSource& from);
  bool IsGathered(size_t place) const {
    return place < data_.size() && data_[place].parameter != nullptr;
  }
  // Of one of them, out of its .grad, which is undefined from then on, until
  // DropGradient. Autograd learns that the parameter is about to be written.
  absl::StatusOr<GradientData> TakeGradient(const StepSource& from,
                                            size_t place);
  void DropGradient(size_t place) { gradients_[place].reset(); }
  // Once it has ended well, of those whose gradients were taken.
  void PublishTaken(const KnownParameters& known,
                    const std::vector<bool>& taken);
  // Copies of parameters are another's.
  void ReleaseStaged() { staged_.clear(); }
  void ReleaseGradients() { gradients_.clear(); }
  void Clear();

 private:
  absl::Status Begin(const StepSource& from);
  absl::Status GatherOne(const StepSource& from, size_t place);
  // The parameter as it is stepped, of what it was registered as.
  absl::Status GatherParameter(const StepSource& from, size_t place);
  const at::Tensor& Stepped(const StepSource& from, size_t place) const;
  void PublishOne(const at::Tensor& parameter, size_t place);

  std::vector<AdamOptions> options_;
  std::vector<bool> present_;  // in a group
  std::vector<ParameterData> data_;
  std::vector<at::Tensor> staged_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace terrace
