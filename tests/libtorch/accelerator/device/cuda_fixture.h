// A hook of a CUDA device over a hook of memory, for tests that skip where
// there is no device. They are linked without LibTorch's CUDA kernels, which
// want all of its wheel's libraries: those are loaded once a device is found.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/accelerator/cuda_memory.h"
#include "libtorch/accelerator/device_hook.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

inline constexpr c10::DeviceIndex kDevice = 0;

class CudaTest : public testing::Test {
 protected:
  static at::TensorOptions OnDevice() {
    return at::TensorOptions(at::kFloat).device(at::kCUDA, kDevice);
  }

  void SetUp() override {
    if (c10::cuda::device_count() <= kDevice) {
      GTEST_SKIP() << "there is no device here that CUDA sees";
    }
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      GTEST_SKIP() << "there is a device, but not LibTorch's CUDA: "
                   << dlerror();
    }
  }
  void TearDown() override {
    hook_.reset();
    below_.reset();
    world_.reset();
    if (memory_ != nullptr) {
      memory_.reset();
      c10::cuda::CUDACachingAllocator::setMemoryFraction(1, kDevice);
    }
  }

  // So many bytes beyond what cuBLAS keeps for each stream that was used; 0: no
  // limit.
  DeviceHook& Open(int64_t limit_bytes) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    if (limit_bytes > 0) limit_bytes += ReservedBytes();
    auto opened = OpenCudaMemory(kDevice, limit_bytes);
    EXPECT_TRUE(opened.ok()) << opened.status();
    memory_ = *std::move(opened);
    TestRuntimeOptions options;
    options.budget_bytes = 512 << 20;
    options.path_bytes = int64_t{1} << 30;
    world_ = std::make_unique<TestRuntime>(TestWorld::kMemory, options);
    auto below =
        Hook::Create(world_->runtime(), {.window_bytes = int64_t{256} << 20});
    EXPECT_TRUE(below.ok()) << below.status();
    below_ = *std::move(below);
    auto hook = DeviceHook::Create(*below_, *memory_, CudaRelief(), {});
    EXPECT_TRUE(hook.ok()) << hook.status();
    hook_ = *std::move(hook);
    return *hook_;
  }
  at::Tensor Manage(const std::string& name, at::Tensor tensor) {
    const absl::Status status = hook_->Manage({{name, tensor}});
    EXPECT_TRUE(status.ok()) << status;
    return tensor;
  }

  // The second stream comes after what the first was given.
  static void Order(const c10::cuda::CUDAStream& first,
                    const c10::cuda::CUDAStream& second) {
    c10::cuda::CUDAEvent event;
    event.record(first);
    event.block(second);
  }
  // Keeps the current stream busy for some hundred milliseconds.
  static void Delay() {
    const at::Tensor a = at::full({4096, 4096}, 1e-3, OnDevice());
    at::Tensor b = at::full({4096, 4096}, 1e-3, OnDevice());
    at::Tensor c = at::empty_like(a);
    for (int i = 0; i < 200; ++i) {
      at::mm_out(c, a, b);
      std::swap(b, c);
    }
  }
  // The memory of what has just ended, at once, with other values in it.
  static std::vector<at::Tensor> Overwrite(int64_t elements) {
    std::vector<at::Tensor> others;
    for (int i = 0; i < 8; ++i) {
      others.push_back(at::full({elements}, -1, OnDevice()));
    }
    return others;
  }

 private:
  static int64_t ReservedBytes() {
    constexpr auto kAll =
        static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(kDevice)
        .reserved_bytes[kAll]
        .current;
  }

  std::unique_ptr<TorchStreamedDevice> memory_;
  std::unique_ptr<TestRuntime> world_;
  std::unique_ptr<Hook> below_;
  std::unique_ptr<DeviceHook> hook_;
};

}  // namespace terrace
