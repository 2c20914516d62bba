// A device that fails for good in the middle of its runtime's life: what was
// only there is DataLoss by name, what is elsewhere lives on, and nothing waits
// for it.
#include "tests/contract/device/device_contract_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LostDeviceTest : public DeviceContractTest {
 protected:
  // False: this device cannot be made to fail.
  bool Break() {
    return device() != nullptr && device()->Break("CUDA error 719");
  }
  // Whether it was had; else `*status` says why not.
  absl::Status TakeAndRelease(RequestQueue& queue, TensorId tensor,
                              Access access) {
    return world().Take(queue, tensor, access).status();
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, LostDeviceTest,
                         testing::Values(DeviceKind::kFakeVirtual,
                                         DeviceKind::kFakeThreads),
                         DeviceParamName);

TEST_P(LostDeviceTest, WhatWasOnlyThereIsLostByName) {
  Make(4, 16);
  const TensorId only = world().Register("only", kPage);
  const TensorId both = world().Register("both", kPage);
  auto above = OnDevice(2);
  auto below = InMemory(2);
  world().Fill(*above, only, 1);
  world().Fill(*below, both, 2);
  EXPECT_TRUE(world().Holds(*above, both, 2));
  ASSERT_TRUE(Break());
  const absl::Status refused = TakeAndRelease(*above, both, Access::kRead);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused),
              AllOf(HasSubstr("'both'"), HasSubstr("CUDA error 719")));
  const absl::Status lost = TakeAndRelease(*below, only, Access::kRead);
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(Message(lost), AllOf(HasSubstr("'only'"), HasSubstr("4096 bytes"),
                                   HasSubstr("CUDA error 719")));
  EXPECT_TRUE(world().Holds(*below, both, 2));
}

TEST_P(LostDeviceTest, WhatWasLostCanBeWrittenAnewInAnotherTensor) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*above, tensor, 1);
  ASSERT_TRUE(Break());
  EXPECT_FALSE(TakeAndRelease(*below, tensor, Access::kRead).ok());
  EXPECT_TRUE(runtime().Unregister(tensor).ok());
  const TensorId again = world().Register("a", kPage);
  world().Fill(*below, again, 2);
  EXPECT_TRUE(world().Holds(*below, again, 2));
}

TEST_P(LostDeviceTest, PinsOutliveItAndWhatTheyPublishIsLost) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*below, tensor, 1);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kUpdate);
  ASSERT_TRUE(pin.ok()) << pin.status();
  ASSERT_TRUE(Break());
  pin->Release();
  const absl::Status lost = TakeAndRelease(*below, tensor, Access::kRead);
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
}

TEST_P(LostDeviceTest, ADiscardAfterItFallsBackOnMemory) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*below, tensor, 1);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kUpdate);
  ASSERT_TRUE(pin.ok()) << pin.status();
  ASSERT_TRUE(Break());
  pin->Discard();
  EXPECT_TRUE(world().Holds(*below, tensor, 1));
}

TEST_P(LostDeviceTest, QueuesThereCloseAndNoneOpens) {
  Make(4, 16);
  const std::vector<TensorId> tensors = world().RegisterMany(8, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 8; ++i) world().Fill(*above, tensors[i], i);
  ASSERT_TRUE(Break());
  const auto refused = runtime().OpenQueue(kPage, 1, Soon(), kHbm);
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(Message(refused.status()), HasSubstr("CUDA error 719"));
  above.reset();
  EXPECT_TRUE(
      world().WaitUntil([&] { return device_stats().used_bytes == 0; }));
  // What had left for memory, or a disk, in time is there.
  auto below = InMemory(1);
  for (uint8_t i = 0; i < 8; ++i) {
    const absl::Status status =
        TakeAndRelease(*below, tensors[i], Access::kRead);
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    if (status.ok()) {
      EXPECT_TRUE(world().Holds(*below, tensors[i], i));
    }
  }
}

TEST_P(LostDeviceTest, AStepHearsOfTheLoss) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  world().Fill(*above, tensor, 1);
  ASSERT_TRUE(above->BeginStep(1).ok());
  ASSERT_TRUE(Break());
  EXPECT_FALSE(TakeAndRelease(*above, tensor, Access::kRead).ok());
  EXPECT_FALSE(above->CommitStep({1}).ok());
}

TEST_P(LostDeviceTest, TheRuntimeCloses) {
  Make(4, 6);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 12; ++i) world().Fill(*above, tensors[i], i);
  ASSERT_TRUE(Break());
  above.reset();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

}  // namespace
}  // namespace terrace
