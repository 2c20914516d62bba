// The tensors that Python hands over for a step, as the addresses of
// terrace/optimizer.h.
//
// A tensor whose elements do not lie in order is staged: its parameter and
// its gradient are copied into order for the step, and the parameter back
// after it. All others are used where they are, in CPU memory or on a device.
//
// Thread-compatible. Holds references to what its addresses point into until
// Return(), Forget() or the next Locate(); its devices live as long as it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

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

// InvalidArgument for what cannot be stepped (another device or layout, a
// dtype that is not fp32, bf16 or fp16); `name` is for the message.
absl::StatusOr<ParameterSpec> DescribeTensor(const at::Tensor& parameter,
                                             const std::string& name);

// The gradients of a model of which this process steps a share, for the norm
// that clips. Holds references to them until Clear() or the next Locate().
class NormTensors {
 public:
  // InvalidArgument: a gradient that cannot be read, by position.
  absl::Status Locate(const std::vector<at::Tensor>& parameters);
  void Clear();

  absl::Span<const GradientData> data() const { return data_; }

 private:
  TensorDevices devices_;
  OffloadedDevice offloaded_;
  std::vector<GradientData> data_;
  std::vector<at::Tensor> gradients_;
};

// In place of a parameter's group: it is not stepped.
inline constexpr int64_t kInNoGroup = -1;

class StepTensors {
 public:
  // The parameters from the place `first` on, and none behind them: Locate()
  // takes them in the shapes that they have now, which their state has too.
  void Expect(const std::vector<at::Tensor>& parameters, size_t first);

  // InvalidArgument, naming the parameter: it or its gradient is no longer, or
  // not, what its spec says, or it overlaps another. Nothing was changed then.
  // What is in no group is as if it had no gradient. `again`: another attempt
  // at the step before, where its copies are.
  absl::Status Locate(absl::Span<const ParameterSpec> specs,
                      const std::vector<at::Tensor>& parameters,
                      absl::Span<const int64_t> groups, bool again);

  absl::Span<const ParameterData> data() const { return data_; }

  // Of a late step: what Locate() found, to be referred to by others alone, but
  // for what is offloaded: that stays where it is until EndLate().
  // Unimplemented: a parameter on a device.
  absl::Status Release(absl::Span<const ParameterSpec> specs,
                       LateArguments* arguments);
  void EndLate();

  // Of a gradual step: the parameters that are in a group alone, of the others
  // null; the gradient of one of them, out of its .grad, which is undefined
  // from then on, until Drop(). InvalidArgument likewise; it stays then. Lets
  // autograd know at once which is written, and again when it has been.
  absl::Status LocateParameters(absl::Span<const ParameterSpec> specs,
                                const std::vector<at::Tensor>& parameters,
                                absl::Span<const int64_t> groups);
  absl::StatusOr<GradientData> TakeGradient(const ParameterSpec& spec,
                                            const at::Tensor& parameter,
                                            size_t index);
  void Drop(size_t index) { supplied_[index].reset(); }

  // Ends the step: copies back what was staged, also of a step that failed
  // half way, and lets autograd know which parameters were written. Keeps the
  // copies of a step that is incomplete.
  void Return(bool written, bool incomplete);
  // Drops all references, after an error of Locate(), but the copies of a step
  // that is incomplete.
  void Forget();

 private:
  struct Staged {
    at::Tensor parameter;
    at::Tensor in_order;
    size_t index;  // among all parameters
  };

  void ForgetTensors();
  absl::Status BeginLocate(size_t specs, size_t parameters);
  absl::Status LocateOne(const ParameterSpec& spec, const at::Tensor& parameter,
                         bool is_stepped);
  // What is stepped of one, in order.
  absl::StatusOr<at::Tensor> LocateParameter(const ParameterSpec& spec,
                                             const at::Tensor& parameter);
  // To where the step finds them, both with elements and in order. The gradient
  // may be undefined: it comes later.
  void Point(const at::Tensor& parameter, const at::Tensor& gradient,
             ParameterData& data);
  absl::Status CheckApart(absl::Span<const ParameterSpec> specs);
  absl::Status CheckForm(const ParameterSpec& spec,
                         const at::Tensor& parameter) const;
  at::Tensor InOrder(const at::Tensor& parameter, size_t index) const;

  std::vector<c10::DimVector> shapes_;  // of all parameters
  TensorDevices devices_;
  OffloadedDevice offloaded_;
  TensorsApart apart_;
  std::vector<ParameterData> data_;
  std::vector<at::Tensor> stepped_;  // parameters with a gradient
  std::vector<size_t> places_;       // theirs
  // Of each of them, in order, a copy where it was not; or undefined.
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> supplied_;  // gradients of a gradual step, by place
  std::vector<Staged> staged_;
  std::vector<Staged> kept_;  // of the step before, which is incomplete
};

}  // namespace terrace
