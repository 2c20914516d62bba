// Tensors on a device, stepped through LibTorch's own copies and streams. CPU
// memory is the device here: its copies are LibTorch's too, and it is there on
// every machine; python/tests/test_cuda.py does the same on a GPU.
#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/torch_device.h"
#include "tests/libtorch/optimizer_peer.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {

namespace {

std::unique_ptr<OffloadedAdamW> MakeOnDevice(
    Runtime& runtime, std::vector<at::Tensor> parameters) {
  OptimizerOptions options = SmallChunks();
  options.max_gradient_norm = 1;
  return *OffloadedAdamW::Create(runtime, std::move(parameters), options);
}

void SetGradients(int64_t step, const std::vector<at::Tensor>& parameters,
                  const std::vector<at::Tensor>& others) {
  DrawGradients(step, parameters);
  for (size_t i = 0; i < others.size(); ++i) {
    others[i].mutable_grad() = parameters[i].grad().clone();
  }
}

TEST(TorchDevice, StepsToTheBitsOfTensorsInPlace) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto runtime = MakeRuntime();
    const auto other_runtime = MakeRuntime();
    const std::vector<at::Tensor> staged = MakeParameters(dtype);
    const std::vector<at::Tensor> in_place = CopiesOf(staged, dtype);
    const auto optimizer = MakeOnDevice(*runtime, staged);
    const auto reference = MakeOnDevice(*other_runtime, in_place);
    OffloadedAdamPeer::StepThroughCopies(*optimizer);
    for (int64_t step = 1; step <= 3; ++step) {
      SetGradients(step, in_place, staged);
      const absl::Status status = optimizer->TryStep();
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(reference->TryStep().ok());
      for (size_t i = 0; i < staged.size(); ++i) {
        EXPECT_TRUE(SameBits(staged[i], in_place[i])) << step << ", " << i;
      }
    }
    const StepReport& report = optimizer->offloaded().last_report();
    int64_t elements = 0;
    for (const at::Tensor& tensor : staged) elements += tensor.numel();
    EXPECT_EQ(report.bytes_to_devices,
              elements * static_cast<int64_t>(c10::elementSize(dtype)));
    EXPECT_GT(report.bytes_from_devices, report.bytes_to_devices);
    EXPECT_EQ(reference->offloaded().last_report().bytes_to_devices, 0);
  }
}

TEST(TorchDevice, TensorsWhoseElementsDoNotLieInOrderAreSteppedThere) {
  const auto runtime = MakeRuntime();
  const auto other_runtime = MakeRuntime();
  at::manual_seed(3);
  const at::Tensor values = at::randn({37, 41});
  const at::Tensor staged = values.clone().t().detach().set_requires_grad(true);
  const at::Tensor in_place = values.t().clone().set_requires_grad(true);
  ASSERT_FALSE(staged.is_contiguous());
  const auto optimizer = MakeOnDevice(*runtime, {staged});
  const auto reference = MakeOnDevice(*other_runtime, {in_place});
  OffloadedAdamPeer::StepThroughCopies(*optimizer);
  for (int64_t step = 1; step <= 2; ++step) {
    SetGradients(step, {in_place}, {staged});
    ASSERT_TRUE(optimizer->TryStep().ok());
    ASSERT_TRUE(reference->TryStep().ok());
    EXPECT_TRUE(SameBits(staged, in_place));
  }
}

TEST(TorchDevice, CopiesBytesAndGivesAlignedMemory) {
  const std::unique_ptr<Device> device = MakeTorchDevice(at::kCPU);
  EXPECT_EQ(device->name(), "cpu");
  ASSERT_TRUE(device->Synchronize().ok());
  constexpr int64_t kBytes = 4097;
  absl::StatusOr<PinnedMemory> memory = device->AllocatePinned(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % 64, 0u);
  absl::StatusOr<std::unique_ptr<Device::Stream>> stream = device->MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  const at::Tensor source =
      at::arange(kBytes, at::kLong).remainder(251).to(at::kByte);
  at::Tensor target = at::zeros({kBytes}, at::kByte);
  ASSERT_TRUE((*stream)
                  ->CopyToHost(memory->get(), source.const_data_ptr(), kBytes)
                  .ok());
  ASSERT_TRUE((*stream)->Wait().ok());
  ASSERT_TRUE(
      (*stream)
          ->CopyToDevice(target.mutable_data_ptr(), memory->get(), kBytes)
          .ok());
  ASSERT_TRUE((*stream)->Wait().ok());
  EXPECT_TRUE(target.equal(source));
}

TEST(TorchDevice, ADeviceThatLibTorchHasNotIsAStatus) {
  const std::unique_ptr<Device> device =
      MakeTorchDevice(c10::Device(c10::kMAIA, 0));
  EXPECT_TRUE(absl::IsInternal(device->Synchronize()));
  EXPECT_TRUE(absl::IsInternal(device->MakeStream().status()));
}

TEST(TorchDevice, ParametersElsewhereAreRefusedByName) {
  const auto runtime = MakeRuntime();
  const at::Tensor meta =
      at::empty({3}, at::TensorOptions(at::kMeta)).set_requires_grad(true);
  const auto created = OffloadedAdamW::Create(*runtime, {meta}, SmallChunks());
  EXPECT_TRUE(absl::IsInvalidArgument(created.status()));
  EXPECT_THAT(std::string(created.status().message()),
              testing::HasSubstr("is on meta; only memory of the CPU"));
}

}  // namespace
}  // namespace terrace
