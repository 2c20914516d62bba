// What tests of LibTorch's optimizers reach that their customers do not.
#pragma once

#include "libtorch/torch_device.h"
#include "terrace/torch/optimizer.h"

namespace terrace {

class OffloadedAdamPeer {
 public:
  static void StepThroughCopies(OffloadedAdamBase& optimizer) {
    optimizer.set_devices(MakeTorchDevice);
  }
};

}  // namespace terrace
