// The hook of devices over LibTorch's own operations, with memory in a device's
// place (memory_as_device.h).
#include "libtorch/accelerator/device_hook.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/compat.h"
#include "tests/libtorch/accelerator/memory_as_device.h"
#include "tests/libtorch/hook/hook_fixture.h"
#include "tests/support/own_child.h"

// A collective of another library's, by its name: it has a list of lists, too.
TORCH_LIBRARY_FRAGMENT(_c10d_functional, m) {
  m.def("terrace_test_gather(Tensor[][] outputs, Tensor input) -> ()",
        [](const std::vector<std::vector<at::Tensor>>&, const at::Tensor&) {});
}

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DeviceHookTest : public HookTest {
 protected:
  void SetUp() override {
    Make(/*window_bytes=*/1 << 20, /*spare_bytes=*/1 << 20);
  }
  void TearDown() override {
    device_.reset();
    EndHook();
  }
  DeviceHook& Open(int64_t budget_bytes = INT64_MAX) {
    auto made =
        DeviceHook::Create(hook(), memory_, memory_.port(),
                           {.budget_bytes = budget_bytes, .segment_bytes = 1});
    EXPECT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
    return *device_;
  }
  at::Tensor OnDevice(const std::string& name, at::Tensor tensor) {
    const absl::Status status = device_->Manage({{name, tensor}});
    EXPECT_TRUE(status.ok()) << status;
    return tensor;
  }
  void End() { device_.reset(); }

  MemoryAsDevice memory_;

 private:
  std::unique_ptr<DeviceHook> device_;
};

void Gather(const std::vector<std::vector<at::Tensor>>& outputs,
            const at::Tensor& input) {
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("_c10d_functional::terrace_test_gather", "")
          .typed<void(const std::vector<std::vector<at::Tensor>>&,
                      const at::Tensor&)>();
  operation.call(outputs, input);
}

TEST_F(DeviceHookTest, OperationsBringWhatWasEvicted) {
  DeviceHook& device = Open();
  const at::Tensor values = at::arange(12, at::kFloat);
  const at::Tensor tensor = OnDevice("a", values.clone());
  const at::Tensor view = tensor.view({3, 4});
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_TRUE(at::equal(view.t().contiguous(), values.view({3, 4}).t()));
  EXPECT_FALSE(IsCold(tensor));
  EXPECT_EQ(device.stats().fetches, 1);
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(device.stats().clean_drops, 1);
}

TEST_F(DeviceHookTest, WhatAnOperationWritesIsWrittenBack) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::zeros({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  tensor.add_(1);
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(device.stats().clean_drops, 0);
  tensor.view({2, 4}).select(0, 1).fill_(3);
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(tensor.sum().item<float>(), 16);
  ASSERT_TRUE(device.WriteBack().ok());
  EXPECT_FALSE(IsCold(tensor));
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(device.stats().clean_drops, 1);
}

TEST_F(DeviceHookTest, ViewsBringNothing) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::zeros({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(tensor.view({2, 4}).size(1), 4);
  EXPECT_TRUE(IsCold(tensor));
}

TEST_F(DeviceHookTest, ASideStreamIsRecordedWithTheBlockInTheStorage) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  memory_.SetStream(7);
  EXPECT_EQ(tensor.sum().item<float>(), 8);
  EXPECT_THAT(memory_.recorded(), testing::ElementsAre(7));
  EXPECT_EQ(device.EvictAll(), 1);
  // And the stream of the copy to memory.
  EXPECT_THAT(memory_.recorded(), testing::ElementsAre(7, 101));
  memory_.SetStream(0);
}

TEST_F(DeviceHookTest, WhatACollectiveHasStaysUntilTheStepsEnd) {
  DeviceHook& device = Open();
  const at::Tensor input = OnDevice("input", at::ones({8}));
  const at::Tensor output = OnDevice("output", at::ones({8}));
  const at::Tensor other = OnDevice("other", at::ones({8}));
  Gather({{at::ones({1}), output}}, input);
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_TRUE(IsCold(other));
  device.BeginStep();
  EXPECT_EQ(memory_.waits_for_all(), 0);
  EXPECT_EQ(device.EvictAll(), 2);
  EXPECT_EQ(memory_.waits_for_all(), 2);
}

TEST_F(DeviceHookTest, ACaptureOfWhatIsAwayThrows) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  memory_.SetCapturing(true);
  EXPECT_THAT(
      TextThrown([&] { tensor.sum(); }),
      AllOf(StartsWith("terrace: 'a' 32 bytes"), HasSubstr("captured")));
  memory_.SetCapturing(false);
  if (kCanDisarm<c10::StorageImpl>) {
    EXPECT_EQ(tensor.sum().item<float>(), 8);
  }
}

TEST_F(DeviceHookTest, ALeaseKeepsItForACapture) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  auto lease = device.MakeLease(tensor, /*is_written=*/false);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_FALSE(IsCold(tensor));
  memory_.SetStream(7);  // one that has not used it
  memory_.SetCapturing(true);
  EXPECT_EQ(TextThrown([&] { tensor.sum(); }), "");
  memory_.SetCapturing(false);
  memory_.SetStream(0);
  EXPECT_EQ(device.EvictAll(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(device.Close()));
  lease->reset();
  EXPECT_EQ(device.EvictAll(), 0);  // the graph has its address
  EXPECT_TRUE(device.Close().ok());
  EXPECT_FALSE(device.MakeLease(at::ones({1}), false).ok());
}

TEST_F(DeviceHookTest, AFailedFetchThrowsInTheOperation) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  memory_.SetFull(true);
  EXPECT_EQ(TextThrown([&] { tensor.mul(2); }),
            "terrace: 'a' 32 bytes: out of memory");
  EXPECT_THAT(device.stats().first_error.ToString(),
              HasSubstr("out of memory"));
  memory_.SetFull(false);
  const std::string again = TextThrown([&] { tensor.mul(2); });
  if (kCanDisarm<c10::StorageImpl>) {
    EXPECT_EQ(again, "");
  } else {
    EXPECT_EQ(again, "terrace: 'a' 32 bytes: out of memory");
    EXPECT_FALSE(device.Close().ok());
  }
}

TEST_F(DeviceHookTest, ATensorMayDieHereAndAway) {
  DeviceHook& device = Open();
  at::Tensor here = OnDevice("here", at::ones({8}));
  at::Tensor away = OnDevice("away", at::ones({8}));
  const at::Tensor left = OnDevice("left", at::ones({8}));
  const int64_t managed_below = hook().stats().managed_tensors;
  EXPECT_EQ(device.EvictAll(), 3);
  here.add_(1);
  away.reset();
  here.reset();
  device.BeginStep();
  EXPECT_EQ(device.stats().held_bytes, 0);
  EXPECT_EQ(hook().stats().managed_tensors, managed_below - 2);
  EXPECT_EQ(left.sum().item<float>(), 8);
}

TEST_F(DeviceHookTest, OtherMemoryEndsItsManagement) {
  DeviceHook& device = Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  EXPECT_EQ(device.EvictAll(), 1);
  tensor.resize_({4096});
  EXPECT_EQ(tensor.narrow(0, 0, 8).sum().item<float>(), 8);
  device.BeginStep();
  EXPECT_EQ(device.EvictAll(), 0);
  EXPECT_EQ(device.stats().held_bytes, 0);
}

TEST_F(DeviceHookTest, RefusesByName) {
  DeviceHook& device = Open();
  float memory[4] = {};
  const at::Tensor foreign = at::from_blob(memory, {4});
  const at::Tensor meta = at::empty({4}, at::kMeta);
  for (const auto& [tensor, why] :
       std::vector<std::pair<at::Tensor, std::string>>{
           {foreign, "did not make"},
           {meta, "is on meta, not on cpu"},
           {at::Tensor(), "is undefined"},
           {at::eye(2).to_sparse(), "is not dense"}}) {
    const absl::Status status = device.Manage({{"t", tensor}});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'t'"), HasSubstr(why)));
  }
}

TEST_F(DeviceHookTest, APortHasOneHook) {
  Open();
  const auto other = DeviceHook::Create(hook(), memory_, memory_.port(), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
}

TEST_F(DeviceHookTest, CloseBringsAllAndSeesNoOperationAnyMore) {
  DeviceHook& device = Open(/*budget_bytes=*/32);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(
        OnDevice(std::to_string(i), at::full({8}, i, at::kFloat)));
  }
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(device.stats().held_bytes, 0);
  EXPECT_TRUE(at::hasGlobalCallbacks());
  ASSERT_TRUE(device.Close().ok());
  for (const at::Tensor& each : tensors) EXPECT_FALSE(IsCold(each));
  hook().Close(Hook::AtClose::kRestore).IgnoreError();
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_FALSE(memory_.port().Relieve());
  End();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(tensors[static_cast<size_t>(i)].sum().item<float>(), 8 * i);
  }
}

TEST_F(DeviceHookTest, EndsInAForkedChildWithoutADevice) {
  Open();
  const at::Tensor tensor = OnDevice("a", at::ones({8}));
  EXPECT_TRUE(InChild([&] {
    End();
    return true;
  }));
  EXPECT_EQ(tensor.sum().item<float>(), 8);
}

// What one run leaves: its losses, then all parameters.
std::vector<at::Tensor> Train(torch::nn::Sequential& model,
                              const std::function<void()>& at_boundary) {
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1e-2));
  at::manual_seed(5);
  std::vector<at::Tensor> left;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = model->forward(at::randn({9, 32})).square().mean();
    at_boundary();
    loss.backward();
    left.push_back(loss.detach().clone());
    at_boundary();
    optimizer.step();
    at_boundary();
  }
  for (const at::Tensor& each : model->parameters()) {
    left.push_back(each.detach().clone());
  }
  return left;
}

torch::nn::Sequential MakeModel() {
  at::manual_seed(3);
  torch::nn::Sequential model;
  for (int i = 0; i < 6; ++i) {
    model->push_back(torch::nn::Linear(32, 32));
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

TEST_F(DeviceHookTest, TrainingHasTheSameBits) {
  torch::nn::Sequential plain = MakeModel();
  const std::vector<at::Tensor> expected = Train(plain, [] {});
  // Two layers' weights of six; with relief at each fetch, and without.
  for (const bool is_tight : {false, true}) {
    SCOPED_TRACE(is_tight);
    SetUp();
    memory_.SetTight(is_tight);
    DeviceHook& device = Open(/*budget_bytes=*/2 * 32 * 32 * 4 + 256);
    torch::nn::Sequential model = MakeModel();
    for (const auto& parameter : model->named_parameters()) {
      OnDevice(parameter.key(), parameter.value());
    }
    const std::vector<at::Tensor> left = Train(model, [&] {
      ASSERT_TRUE(device.WriteBack().ok());
      device.BeginStep();
    });
    ASSERT_EQ(left.size(), expected.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(at::equal(left[i], expected[i])) << i;
    }
    const DeviceWindowStats stats = device.stats();
    EXPECT_TRUE(stats.first_error.ok()) << stats.first_error;
    EXPECT_GT(stats.fetches, 4 * 6);
    EXPECT_EQ(stats.relief_drops > 0, is_tight);
    TearDown();
  }
}

}  // namespace
}  // namespace terrace
