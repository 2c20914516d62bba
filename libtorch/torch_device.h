// LibTorch's devices for steps whose parameters are not in CPU memory. Copies
// are at::Tensor::copy_ on streams of their own, through LibTorch's registry
// of devices: no header of CUDA, so it is compiled against every LibTorch, and
// in a program whose LibTorch has no CUDA there is no tensor to use it for.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/device.h"

namespace terrace {

// Any device that LibTorch has streams for; CPU memory too, whose copies are
// done at once. Its memory is of LibTorch's allocator. Copies are asynchronous
// where the host's memory is pinned. A foreign exception becomes Internal, of
// memory ResourceExhausted.
std::unique_ptr<Device> MakeTorchDevice(c10::Device device);

// Whether tensors there can be stepped: in CPU memory, or that of an
// accelerator whose streams LibTorch has here.
bool CanStepOn(c10::Device device);

// The devices of an optimizer's tensors, each made when it is first seen. They
// live as long as this. Thread-compatible.
class TensorDevices {
 public:
  // Null: tensors there are used in place.
  using Choose = std::function<std::unique_ptr<Device>(c10::Device)>;

  TensorDevices();  // CPU memory in place, all else by MakeTorchDevice
  explicit TensorDevices(Choose choose) : choose_(std::move(choose)) {}

  Device* Of(const at::Tensor& tensor);

 private:
  Choose choose_;
  std::vector<std::pair<c10::Device, std::unique_ptr<Device>>> devices_;
};

}  // namespace terrace
