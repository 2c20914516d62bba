// The gradients of a model of which this process steps a share, for the norm
// that clips. Refers to them until Clear() or the next Gather(). A gradient
// that is offloaded is not brought before the norm reads it.
//
// Thread-compatible.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libtorch/offloaded_device.h"
#include "libtorch/torch_device.h"
#include "terrace/optimizer.h"

namespace terrace {

class NormGradients {
 public:
  // Returns InvalidArgument for a gradient that cannot be read, by the
  // parameter's position. LibTorch's exceptions pass through.
  absl::Status Gather(const std::vector<at::Tensor>& parameters);
  void Clear();

  absl::Span<const GradientData> data() const { return data_; }

 private:
  TensorDevices devices_;
  OffloadedDevice offloaded_;
  std::vector<GradientData> data_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace terrace
