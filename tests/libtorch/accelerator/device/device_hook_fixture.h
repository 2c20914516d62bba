// A hook over the tests' accelerator: a runtime with a tier in the device's
// memory, memory that the device copies from and to beside the CPU, and a disk.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/accelerator/stream_rules.h"
#include "libtorch/torch_device.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"
#include "tests/libtorch/accelerator/device/accelerator_fixture.h"
#include "tests/libtorch/accelerator/device/registered_memory.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

class DeviceHookTest : public AcceleratorTest {
 protected:
  // A tensor of so many numbers takes whole pages, and one for its header.
  static constexpr int64_t kNumbers = 1024;
  static constexpr int64_t kTensorBytes = 2 * 4096;

  ~DeviceHookTest() override {
    End();
    StreamRules::SetForTest({});
  }

  // Of hook and runtime.
  void End() {
    hook_.reset();
    if (runtime_ == nullptr) return;
    const absl::Status closed =
        runtime_->Close(absl::Now() + absl::Seconds(30));
    EXPECT_TRUE(closed.ok()) << closed;
    runtime_.reset();
  }

  // Room for so many tensors on each tier.
  void Make(int on_device, int in_memory, HookOptions options = {}) {
    MakeRuntime({{kDevice, on_device * kTensorBytes}},
                in_memory * kTensorBytes);
    options.device = kDevice;
    hook_ = MakeHook(options);
  }
  void MakeRuntime(const std::vector<std::pair<c10::Device, int64_t>>& devices,
                   int64_t memory_bytes) {
    Options options;
    options.threads = 2;
    options.huge_pages = HugePages::kOff;
    for (const auto& [device, bytes] : devices) {
      options.tiers.push_back({.kind = TierKind::kHbm,
                               .place = device.str(),
                               .budget_bytes = bytes,
                               .device = MakeTorchDevice(device)});
    }
    options.tiers.push_back(
        {.kind = TierKind::kDram, .budget_bytes = memory_bytes});
    options.tiers.push_back(
        {.kind = TierKind::kDisk, .place = directory_.path()});
    auto made = Runtime::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    runtime_ = *std::move(made);
  }
  std::unique_ptr<Hook> MakeHook(const HookOptions& options) {
    auto made = Hook::Create(*runtime_, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  at::Tensor Managed(const std::string& name, at::Tensor tensor) {
    const absl::Status managed = hook_->Manage({{name, tensor}});
    EXPECT_TRUE(managed.ok()) << managed;
    return tensor;
  }
  // Filled with the value.
  at::Tensor Filled(const std::string& name, double value) {
    return Managed(name, at::full({kNumbers}, value, OnDevice()));
  }
  // The sum of all is exact.
  static double MeanOf(const at::Tensor& tensor) {
    return tensor.cpu().to(at::kDouble).mean().item<double>();
  }
  static bool IsCold(const at::Tensor& tensor) {
    return tensor.storage()
               .unsafeGetStorageImpl()
               ->_mutable_data_ptr_no_checks()
               .get() == nullptr;
  }
  TierStats HbmStats(size_t index = 0) {
    size_t seen = 0;
    for (const TierStats& each : runtime_->GetStats().tiers) {
      if (each.kind == TierKind::kHbm && seen++ == index) return each;
    }
    return {};
  }

  Hook& hook() { return *hook_; }
  Runtime& runtime() { return *runtime_; }
  void EndHook() { hook_.reset(); }

 private:
  const RegisteredMemory registered_;
  const TemporaryDirectory directory_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Hook> hook_;
};

}  // namespace terrace
