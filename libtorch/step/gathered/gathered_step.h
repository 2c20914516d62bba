// Gathers the options and addresses of terrace/optimizer.h for a step from
// LibTorch's groups and tensors, by the parameters' places.
//
//   status = gathered.Gather(source, /*goes_on=*/false);
//   status = optimizer.Step({.groups = gathered.options()}, gathered.data(),
//                           deadline);
//   gathered.Publish();
//
// A parameter whose elements do not lie in order is copied into order for the
// step, and back after it. Such a gradient is copied too, but not back. All
// other tensors are used where they are.
//
// Thread-compatible. The tensors that addresses point into are kept alive until
// the next Gather or Clear.
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

// What an optimizer gathers from. All objects that it refers to outlive the
// call.
struct StepSource {
  AdamMode mode = AdamMode::kAdamW;
  bool bias_correction = true;
  const std::vector<::torch::optim::OptimizerParamGroup>& groups;
  KnownParameters& known;
  absl::Span<const ParameterSpec> specs;  // of the known parameters
  TensorDevices& devices;
  OffloadedDevice* offloaded;  // null: offloaded tensors are refused
};

// Returns the groups' options by the parameters' places; a parameter that is in
// no group has the default ones. Returns InvalidArgument as ReadGroup does.
absl::StatusOr<std::vector<AdamOptions>> OptionsByPlace(const StepSource& from);

class GatheredStep {
 public:
  // Gathers the parameters that are in a group and have a gradient; of all
  // others the gradient is null. With `goes_on` this is another attempt at the
  // step before, whose copies of parameters stay. Returns InvalidArgument for
  // options that cannot be, by the group's position, and for a parameter or a
  // gradient that cannot be, by the place. LibTorch's exceptions pass through.
  absl::Status Gather(const StepSource& from, bool goes_on);

  absl::Span<const AdamOptions> options() const { return options_; }
  absl::Span<const ParameterData> data() const { return data_; }
  // Returns the parameter's copy in order, undefined where there is none.
  const at::Tensor& staged(size_t place) const { return staged_[place]; }
  // Returns the contiguous gradient, undefined where there is none.
  const at::Tensor& gradient(size_t place) const { return gradients_[place]; }

  // Called once the step has ended well: copies of parameters go back, and
  // autograd learns which parameters were written.
  void Publish(const KnownParameters& known);

  // Gathers, for a GradualStep, the parameters that are in a group and require
  // a gradient, which comes later; of all others the parameter is null. Errors
  // are those of Gather.
  absl::Status GatherParameters(const StepSource& from);
  bool IsGathered(size_t place) const {
    return place < data_.size() && data_[place].parameter != nullptr;
  }
  // Takes the gradient of a gathered parameter out of its .grad, which is
  // undefined from then on, and keeps it until DropGradient. Autograd learns
  // that the parameter is about to be written.
  absl::StatusOr<GradientData> TakeGradient(const StepSource& from,
                                            size_t place);
  void DropGradient(size_t place) { gradients_[place].reset(); }
  // Called in place of Publish once the GradualStep has ended well, for the
  // parameters whose gradients were taken.
  void PublishTaken(const KnownParameters& known,
                    const std::vector<bool>& taken);
  // The copies of parameters, which another object has taken, go from here.
  void ReleaseStaged() { staged_.clear(); }
  void ReleaseGradients() { gradients_.clear(); }
  void Clear();

 private:
  absl::Status Begin(const StepSource& from);
  absl::Status GatherOne(const StepSource& from, size_t place);
  // Checks that the parameter is still what it was registered as, and copies it
  // into order where its elements do not lie so.
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
