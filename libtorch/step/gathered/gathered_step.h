// Gathers what terrace/optimizer.h takes for a step, the addresses of
// parameters and gradients, from LibTorch's tensors: for OffloadedAdamW and for
// the Python package.
//
//   status = gathered.Gather(source, /*goes_on=*/false);
//   if (status.ok()) status = optimizer.Step({...}, gathered.data(), deadline);
//   gathered.Return(is_written, optimizer.incomplete());
//
// A parameter whose elements do not lie in order is copied into order for the
// step, and back after it. Such a gradient is copied too, but not back. All
// other tensors are used where they are, in memory or on a device.
//
// Errors are InvalidArgument, naming the parameter, where it or its gradient is
// not, or is no longer, what the optimizer knows of it; nothing was changed
// then. LibTorch's exceptions pass through.
//
// Thread-compatible. The tensors that addresses point into are kept alive until
// Return, Forget or the next Gather. What a source refers to outlives each call
// with it; its devices outlive the step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/step/late/late_updates.h"
#include "libtorch/tensors_apart.h"
#include "libtorch/torch_device.h"
#include "terrace/optimizer.h"

namespace terrace {

// What a step is gathered from, by the parameters' places.
struct StepSource {
  // Messages call a parameter by its place, or by the name in its spec.
  enum class Names : uint8_t { kPlaces, kSpecs };

  std::string Called(size_t place) const;

  absl::Span<const ParameterSpec> specs;
  absl::Span<const at::Tensor> parameters;  // as many
  TensorDevices& devices;
  OffloadedDevice* offloaded;  // null: offloaded tensors are refused
  Names names = Names::kPlaces;
};

class GatheredStep {
 public:
  // From here on the parameters from the place `first` on, and none behind
  // them, are gathered in the shapes that they have now alone. All others may
  // have any shape with as many elements as their specs say.
  void Expect(const std::vector<at::Tensor>& parameters, size_t first);

  // Gathers the parameters that are stepped, by place, and have a gradient; of
  // all others the gradient is null. With `goes_on` this is another attempt at
  // the step before, whose copies of parameters have the same addresses.
  absl::Status Gather(const StepSource& from,
                      const std::vector<bool>& are_stepped, bool goes_on);
  absl::Span<const ParameterData> data() const { return data_; }
  // Hands the gathered step over to a late one, which refers to the tensors
  // from then on. Returns Unimplemented for a parameter on a device, or of
  // inference mode.
  absl::Status Release(const StepSource& from, LateArguments* arguments);

  // Gathers, for a GradualStep, the parameters that are stepped, whose
  // gradients come later; of all others the parameter is null.
  absl::Status GatherParameters(const StepSource& from,
                                const std::vector<bool>& are_stepped);
  bool IsGathered(size_t place) const {
    return place < data_.size() && data_[place].parameter != nullptr;
  }
  // Takes the gradient of the gathered parameter at this place out of its
  // .grad, which is undefined from then on, and keeps it until DropGradient.
  // Autograd learns that the parameter is about to be written.
  absl::StatusOr<GradientData> TakeGradient(const StepSource& from,
                                            size_t place,
                                            const at::Tensor& parameter);
  void DropGradient(const StepSource& from, size_t place);

  // Ends the step. Where it has written parameters, as one that failed half-way
  // has too, their copies go back, and autograd learns of it. The copies of a
  // step that is incomplete are kept for the next attempt.
  void Return(bool is_written, bool is_incomplete);
  // Lets go of all tensors, but for the copies of a step that is incomplete.
  void Forget(bool is_incomplete);

 private:
  absl::Status Begin(const StepSource& from, bool goes_on);
  // Checks that the parameter is still what it was registered as, waits for
  // another optimizer's update of it, and copies it into order where its
  // elements do not lie so. Returns what is stepped.
  absl::StatusOr<at::Tensor> GatherParameter(const StepSource& from,
                                             size_t place);
  absl::Status GatherOne(const StepSource& from, size_t place);
  absl::Status CheckApart(const StepSource& from);

  std::vector<c10::DimVector> shapes_;
  TensorsApart apart_;
  std::vector<ParameterData> data_;
  std::vector<size_t> places_;         // of what is stepped
  std::vector<at::Tensor> stepped_;    // as many
  std::vector<at::Tensor> gradients_;  // by place, in order; or undefined
  std::vector<at::Tensor> copies_;     // by place, in order; or undefined
};

}  // namespace terrace
