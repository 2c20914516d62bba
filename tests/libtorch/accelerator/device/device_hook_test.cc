// Tensors of an accelerator that live below: operations find their bytes on the
// device, whatever the streams still do.
#include <c10/core/CachingDeviceAllocator.h>

#include <thread>

#include "tests/libtorch/accelerator/device/device_hook_fixture.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DeviceHookTest, TensorsComeAndGoThroughAllTiers) {
  Make(/*on_device=*/3, /*in_memory=*/4);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(Filled("t" + std::to_string(i), i));
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(MeanOf(tensors[static_cast<size_t>(i)]), i + round);
      tensors[static_cast<size_t>(i)].add_(1);
    }
  }
  const TierStats hbm = HbmStats();
  EXPECT_LE(hbm.peak_bytes, hbm.budget_bytes);
  EXPECT_GT(runtime().GetStats().paths()[0].tensors, 0);
  EXPECT_GT(hook().stats().fetches, 12);
  EXPECT_TRUE(hook().error().ok()) << hook().error();
}

TEST_F(DeviceHookTest, WhatIsEvictedIsColdAndComesBack) {
  Make(4, 8);
  const at::Tensor tensor = Filled("t", 3);
  EXPECT_EQ(tensor.device(), kDevice);
  EXPECT_EQ(hook().EvictAll(), 1);
  EXPECT_TRUE(IsCold(tensor));
  EXPECT_EQ(MeanOf(tensor), 3);
  EXPECT_FALSE(IsCold(tensor));
}

TEST_F(DeviceHookTest, ItsOwnBlockIsGivenBackToTheAllocator) {
  Make(4, 8);
  const int64_t before = TheAccelerator().memory(0).stats().allocated_bytes;
  const at::Tensor tensor = Filled("t", 3);
  WaitForAll();
  EXPECT_EQ(TheAccelerator().memory(0).stats().allocated_bytes, before);
}

TEST_F(DeviceHookTest, CloseBringsTensorsIntoTheAllocatorsMemory) {
  Make(4, 8);
  const at::Tensor tensor = Filled("t", 3);
  hook().EvictAll();
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  EXPECT_FALSE(IsCold(tensor));
  EndHook();
  EXPECT_EQ(MeanOf(tensor.add_(1)), 4);
}

// The thread that closes has no order with the stream that wrote last.
TEST_F(DeviceHookTest, ACloseHasWhatOtherStreamsStillWrite) {
  Make(4, 8);
  const at::Tensor tensor = Filled("t", 3);
  Order(kHome, kSide);
  {
    const c10::StreamGuard guard(kSide);
    for (int i = 0; i < 5; ++i) tensor.add_(1);
  }
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
  {
    const c10::StreamGuard guard(kSide);
    tensor.add_(1);
  }
  Order(kSide, kHome);
  EXPECT_EQ(MeanOf(tensor), 9);
}

// Its memory is the device's until that has done what it was given.
TEST_F(DeviceHookTest, ANameIsFreeAsItsTensorEnds) {
  Make(4, 8);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor tensor = Filled("t", i);
    tensor.add_(1);
  }
  EXPECT_EQ(hook().stats().managed_tensors, 0);
}

TEST_F(DeviceHookTest, WhatIsRecordedForAnotherDeviceIsWaitedFor) {
  Make(4, 8);
  const at::Tensor tensor = Filled("t", 3);
  tensor.record_stream(c10::Stream(c10::Stream::DEFAULT, kOther));
  hook().EvictAll();
  EXPECT_EQ(MeanOf(tensor), 3);
}

TEST_F(DeviceHookTest, WhatIsRefusedAtTheCloseThrows) {
  Make(4, 8);
  const at::Tensor tensor = Filled("t", 3);
  ASSERT_TRUE(hook().Close(Hook::AtClose::kRefuse).ok());
  EXPECT_THROW(tensor.add_(1), c10::Error);
}

TEST_F(DeviceHookTest, ViewsAndTiesFollow) {
  Make(2, 8);
  const at::Tensor tensor = Filled("t", 3);
  const at::Tensor half = tensor.narrow(0, 0, kNumbers / 2);
  Filled("other", 1);
  hook().EvictAll();
  half.add_(2);
  EXPECT_EQ(MeanOf(tensor), 4);
}

TEST_F(DeviceHookTest, TheDeathOfATensorWaitsForWhatItsStreamsStillDo) {
  Make(3, 8);
  for (int i = 0; i < 20; ++i) {
    at::Tensor tensor = Filled("t" + std::to_string(i), i);
    const at::Tensor sum = tensor + 1;
    tensor.reset();
    EXPECT_EQ(MeanOf(sum), i + 1);
  }
  EXPECT_EQ(hook().stats().managed_tensors, 0);
}

TEST_F(DeviceHookTest, ASideStreamsUseOutlivesTheEviction) {
  Make(2, 8);
  const at::Tensor tensor = Filled("t", 3);
  Order(kHome, kSide);
  at::Tensor sum;
  {
    const c10::StreamGuard guard(kSide);
    sum = tensor + 1;
  }
  hook().EvictAll();
  for (int i = 0; i < 4; ++i) Filled("other " + std::to_string(i), 9);
  Order(kSide, kHome);
  EXPECT_EQ(MeanOf(sum), 4);
}

TEST_F(DeviceHookTest, ALeasesUseOutlivesIt) {
  Make(2, 8);
  const at::Tensor tensor = Filled("t", 3);
  hook().EvictAll();
  {
    absl::StatusOr<Lease> lease =
        hook().MakeLease(tensor, Hook::Access::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    // As a kernel of nobody's that LibTorch sees.
    const at::Tensor seen = at::for_blob(lease->data().data(), {kNumbers})
                                .options(OnDevice())
                                .target_device(kDevice)
                                .make_tensor();
    seen.mul_(2);
  }
  hook().EvictAll();
  for (int i = 0; i < 4; ++i) Filled("other " + std::to_string(i), 9);
  EXPECT_EQ(MeanOf(tensor), 6);
}

TEST_F(DeviceHookTest, StreamsThatTheProgramRecordsCount) {
  Make(2, 8);
  const at::Tensor tensor = Filled("t", 3);
  Order(kHome, kSide);
  const at::Tensor alias = at::for_blob(tensor.mutable_data_ptr(), {kNumbers})
                               .options(OnDevice())
                               .target_device(kDevice)
                               .make_tensor();
  at::Tensor sum;
  {
    const c10::StreamGuard guard(kSide);
    sum = alias + 1;  // which the hook does not see
  }
  tensor.record_stream(kSide);
  hook().EvictAll();
  for (int i = 0; i < 4; ++i) Filled("other " + std::to_string(i), 9);
  Order(kSide, kHome);
  EXPECT_EQ(MeanOf(sum), 4);
}

TEST_F(DeviceHookTest, TensorsOfOtherDevicesAreRefusedByName) {
  Make(4, 8);
  const at::Tensor on_cpu = at::ones({kNumbers});
  const absl::Status status = hook().Manage({{"weight", on_cpu}});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("'weight' is on cpu; only testdev:0 is managed"));
  const absl::Status other = hook().Manage(
      {{"other", at::ones({kNumbers}, OnDevice().device(kOther))}});
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
}

TEST_F(DeviceHookTest, WhatThereIsNotIsRefused) {
  MakeRuntime({{kDevice, 8 * kTensorBytes}}, 8 * kTensorBytes);
  const absl::Status no_tier =
      Hook::Create(runtime(), {.device = kOther}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(no_tier)) << no_tier;
  EXPECT_THAT(std::string(no_tier.message()), HasSubstr("hbm:testdev:1"));
  for (const c10::Device& device :
       {c10::Device(c10::DeviceType::PrivateUse1, 7),
        c10::Device(c10::DeviceType::CUDA, 0),
        c10::Device(c10::DeviceType::PrivateUse1)}) {
    const absl::Status none =
        Hook::Create(runtime(), {.device = device}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  }
  const absl::Status in_memory = Hook::Create(runtime(), {}).status();
  EXPECT_TRUE(absl::IsUnimplemented(in_memory)) << in_memory;
  const absl::Status checked =
      Hook::Create(runtime(), {.device = kDevice, .verify_clean = true})
          .status();
  EXPECT_TRUE(absl::IsUnimplemented(checked)) << checked;
}

TEST_F(DeviceHookTest, TwoDevicesHaveAHookEach) {
  MakeRuntime({{kDevice, 3 * kTensorBytes}, {kOther, 3 * kTensorBytes}},
              4 * kTensorBytes);
  const auto first = MakeHook({.device = kDevice});
  const auto second = MakeHook({.device = kOther});
  std::vector<at::Tensor> here;
  std::vector<at::Tensor> there;
  for (int i = 0; i < 6; ++i) {
    here.push_back(at::full({kNumbers}, i, OnDevice()));
    there.push_back(at::full({kNumbers}, 10 * i, OnDevice().device(kOther)));
    const std::string name = std::to_string(i);
    ASSERT_TRUE(first->Manage({{"here " + name, here.back()}}).ok());
    ASSERT_TRUE(second->Manage({{"there " + name, there.back()}}).ok());
  }
  for (size_t i = 0; i < 6; ++i) {
    here[i].add_(there[i].to(kDevice));
    EXPECT_EQ(MeanOf(here[i]), 11.0 * static_cast<double>(i));
  }
  EXPECT_LE(HbmStats(0).peak_bytes, 3 * kTensorBytes);
  EXPECT_LE(HbmStats(1).peak_bytes, 3 * kTensorBytes);
}

TEST_F(DeviceHookTest, AnOperationOfMoreThanTheBudgetThrowsAndLosesNothing) {
  Make(2, 8);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(Filled("t" + std::to_string(i), i));
  }
  EXPECT_THROW(at::cat(tensors), c10::Error);
  EXPECT_TRUE(absl::IsResourceExhausted(hook().error())) << hook().error();
}

// Each adds to tensors of its own, and reads one of all.
TEST_F(DeviceHookTest, ThreadsShareTheWindow) {
  Make(8, 8);
  constexpr int kThreads = 3;
  constexpr int kRounds = 30;
  const at::Tensor shared = Filled("shared", 1);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4 * kThreads; ++i) {
    tensors.push_back(Filled("t" + std::to_string(i), 0));
  }
  WaitForAll();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const c10::Stream stream =
          c10::impl::VirtualGuardImpl(kDevice.type()).getNewStream(kDevice, 0);
      const c10::StreamGuard guard(stream);
      for (int round = 0; round < kRounds; ++round) {
        tensors[static_cast<size_t>(4 * t + round % 4)].add_(shared);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitForAll();
  double sum = 0;
  for (const at::Tensor& tensor : tensors) sum += MeanOf(tensor);
  EXPECT_EQ(sum, kThreads * kRounds);
}

}  // namespace
}  // namespace terrace
