// A hook over the production mover with a memory device that fails as the test
// says.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/torch/hook.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

// Its bytes are away: what a use without an operation would find.
inline bool IsCold(const at::Tensor& tensor) {
  return tensor.storage()
             .unsafeGetStorageImpl()
             ->_mutable_data_ptr_no_checks()
             .get() == nullptr;
}

// What the work throws, without its backtrace; "": nothing.
template <typename Work>
std::string TextThrown(const Work& work) {
  try {
    work();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("not LibTorch's: ") + error.what();
  }
}

class HookTest : public testing::Test {
 protected:
  // The Runtime has the window's bytes and those of `spare`.
  void Make(int64_t window_bytes, int64_t spare_bytes = 0,
            HookOptions options = {}) {
    at::set_num_threads(1);  // tests share the machine
    TestRuntimeOptions runtime;
    runtime.budget_bytes = window_bytes + spare_bytes;
    runtime.path_bytes = 64 << 20;
    hook_.reset();
    world_ = std::make_unique<TestRuntime>(TestWorld::kMemory, runtime);
    options.window_bytes = window_bytes;
    auto made = Hook::Create(world_->runtime(), options);
    ASSERT_TRUE(made.ok()) << made.status();
    hook_ = *std::move(made);
  }

  at::Tensor Managed(const std::string& name, at::Tensor tensor) {
    const absl::Status managed = hook_->Manage({{name, tensor}});
    EXPECT_TRUE(managed.ok()) << managed;
    return tensor;
  }
  // N(0,1), a cold tensor.
  at::Tensor Cold(const std::string& name, at::IntArrayRef sizes) {
    at::Tensor tensor = Managed(name, at::randn(sizes));
    hook_->EvictAll();
    EXPECT_TRUE(IsCold(tensor));
    return tensor;
  }
  // Evicts all, and fills memory with others so that what was evicted is only
  // below.
  void EvictFromMemory() {
    hook_->EvictAll();
    std::vector<at::Tensor> fillers;
    const int64_t budget = world_->runtime().GetStats().host.budget_bytes;
    for (int i = 0; i < 4; ++i) {  // with its header a quarter each
      fillers.push_back(Managed("filler " + std::to_string(fillers_++),
                                at::zeros({(budget / 4 - 4096) / 4})));
    }
    hook_->EvictAll();
  }

  Hook& hook() { return *hook_; }
  TestRuntime& world() { return *world_; }
  void EndHook() { hook_.reset(); }
  int64_t tensors_below() {
    return world_->runtime().GetStats().paths()[0].tensors;
  }

 private:
  std::unique_ptr<TestRuntime> world_;
  std::unique_ptr<Hook> hook_;
  int fillers_ = 0;
};

}  // namespace terrace
