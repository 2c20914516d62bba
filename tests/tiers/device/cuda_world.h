// CUDA's device: over a GPU, where this machine has one and this build CUDA's
// module; and over calls of plain memory.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/open_cuda.h"
#include "tests/kernels/cuda/scripted_cuda.h"
#include "tests/tiers/device/device_worlds.h"

namespace terrace {

class CudaWorld final : public DeviceWorld {
 public:
  CudaWorld() {
    auto device = OpenCuda("cuda:0");
    if (device.ok()) {
      device_ = *std::move(device);
    } else {
      why_ = std::string(device.status().message());
    }
  }

  std::shared_ptr<Device> device() override { return device_; }
  std::string why() const override { return why_; }
  Clock& clock() override { return SystemClock(); }
  bool Await(absl::FunctionRef<bool()> done) override {
    return AwaitInRealTime(done);
  }

 private:
  std::shared_ptr<Device> device_;
  std::string why_;
};

class ScriptedCudaWorld final : public DeviceWorld {
 public:
  std::shared_ptr<Device> device() override {
    auto device = CudaDevice::Open(ScriptedCuda::calls(), 0);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }
  Clock& clock() override { return SystemClock(); }
  // Only what is asked for goes on.
  bool Await(absl::FunctionRef<bool()> done) override {
    for (int i = 0; i < 100'000; ++i) {
      if (done()) return true;
      cuda_.DoSome();
    }
    return false;
  }

 private:
  ScriptedCuda cuda_;
};

}  // namespace terrace
