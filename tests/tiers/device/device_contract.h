// The contract suite's fixture: a world by name.
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/tiers/device/cuda_world.h"
#include "tests/tiers/device/device_worlds.h"

namespace terrace {

inline std::unique_ptr<DeviceWorld> MakeDeviceWorld(const std::string& name) {
  if (name == "Virtual") return std::make_unique<VirtualWorld>();
  if (name == "Threaded") return std::make_unique<ThreadedWorld>();
  if (name == "ScriptedCuda") return std::make_unique<ScriptedCudaWorld>();
  return std::make_unique<CudaWorld>();
}

class DeviceContractTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    world_ = MakeDeviceWorld(GetParam());
    device_ = world_->device();
    if (device_ == nullptr) GTEST_SKIP() << world_->why();
  }
  void TearDown() override {
    EXPECT_TRUE(world_->violations().empty()) << world_->violations().front();
  }

  std::unique_ptr<Device::Stream> MakeStream() {
    auto stream = device_->MakeStream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  DeviceMemory Allocate(int64_t bytes) {
    auto memory = device_->Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }

  std::unique_ptr<DeviceWorld> world_;
  std::shared_ptr<Device> device_;
};

inline auto AllDeviceWorlds() {
  return testing::Values("Virtual", "Threaded", "ScriptedCuda", "Cuda");
}
inline std::string DeviceWorldName(
    const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace terrace
