// The base of what a runtime with a device's memory promises, over every device
// that there is: plain bytes that a Copy transport moves, and the parts that a
// GPU has over fakes and, where there is one, over a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/device/cuda_runtime_device.h"
#include "tests/support/device/fake_runtime_device.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

enum class DeviceKind : uint8_t {
  kBytesVirtual,  // virtual time
  kBytes,
  kFakeVirtual,
  kFakeThreads,
  kCuda,
};

class DeviceContractTest : public testing::TestWithParam<DeviceKind> {
 protected:
  // A tensor of one page takes two: its header's and its own.
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kPlace = 2 * kPage;
  static constexpr char kHbm[] = "hbm";

  void SetUp() override {
    if (GetParam() != DeviceKind::kCuda) return;
    const absl::Status supported = CudaRuntimeDevice::Supports();
    if (!supported.ok()) GTEST_SKIP() << supported;
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_THAT(device_->violations(), testing::IsEmpty());
  }

  // Budgets of that many pages' tensors.
  void Make(int on_device, int in_memory, TestRuntimeOptions options = {}) {
    options.hbm_bytes = on_device * kPlace;
    options.budget_bytes = in_memory * kPlace;
    options.device = device_ = MakeDevice();
    world_ = std::make_unique<TestRuntime>(
        world_is_virtual() ? TestWorld::kHbmVirtual : TestWorld::kHbm, options);
  }
  static bool world_is_virtual() {
    return GetParam() == DeviceKind::kBytesVirtual ||
           GetParam() == DeviceKind::kFakeVirtual;
  }
  TestRuntime& world() { return *world_; }
  // Null: the device is plain bytes.
  RuntimeDevice* device() { return device_.get(); }
  Runtime& runtime() { return world_->runtime(); }
  std::unique_ptr<RequestQueue> OnDevice(int slots) {
    return world().OpenQueue(kPage, slots, kHbm);
  }
  std::unique_ptr<RequestQueue> InMemory(int slots) {
    return world().OpenQueue(kPage, slots);
  }
  Stats stats() { return runtime().GetStats(); }
  TierStats device_stats() { return stats().tiers.at(1); }
  int64_t Moved(size_t link) { return stats().links.at(link).bytes; }
  Time Soon() { return world_->Soon(); }
  // As ContractTest's.
  Time Shortly() {
    return world_->Now() + OnThisMachine(absl::Milliseconds(20));
  }

  static std::string Message(const absl::Status& status) {
    return std::string(status.message());
  }

 private:
  static std::shared_ptr<RuntimeDevice> MakeDevice() {
    switch (GetParam()) {
      case DeviceKind::kBytesVirtual:
      case DeviceKind::kBytes:
        return nullptr;
      case DeviceKind::kFakeVirtual:
        return std::make_shared<VirtualRuntimeDevice>();
      case DeviceKind::kFakeThreads:
        return std::make_shared<ThreadedRuntimeDevice>();
      case DeviceKind::kCuda:
        return std::make_shared<CudaRuntimeDevice>();
    }
    return nullptr;
  }

  std::shared_ptr<RuntimeDevice> device_;
  std::unique_ptr<TestRuntime> world_;
};

inline std::string DeviceParamName(
    const testing::TestParamInfo<DeviceKind>& info) {
  constexpr const char* kNames[] = {"BytesVirtual", "Bytes", "FakeVirtual",
                                    "FakeThreads", "Cuda"};
  return kNames[static_cast<size_t>(info.param)];
}

#define TERRACE_DEVICE_WORLDS(suite)                                      \
  INSTANTIATE_TEST_SUITE_P(                                               \
      Devices, suite,                                                     \
      testing::Values(DeviceKind::kBytesVirtual, DeviceKind::kBytes,      \
                      DeviceKind::kFakeVirtual, DeviceKind::kFakeThreads, \
                      DeviceKind::kCuda),                                 \
      DeviceParamName)

}  // namespace terrace
