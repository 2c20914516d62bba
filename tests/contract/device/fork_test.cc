// A child of fork() made after its parent's device was started: it has no
// device, ends by itself, and disturbs neither the device nor what is there.

#include "tests/contract/device/device_contract_fixture.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

class DeviceFork : public DeviceContractTest {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceFork,
                         testing::Values(DeviceKind::kBytes,
                                         DeviceKind::kFakeThreads,
                                         DeviceKind::kCuda),
                         DeviceParamName);

TEST_P(DeviceFork, EveryCallOfAChildIsCancelledAtOnce) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  world().Fill(*above, tensor, 1);
  ASSERT_TRUE(above->BeginStep(1).ok());
  ASSERT_TRUE(above->Push({{tensor, Access::kRead}}, 0, Soon()).ok());
  EXPECT_TRUE(InChild([&] {
    return absl::IsCancelled(
               runtime().OpenQueue(kPage, 1, Soon(), kHbm).status()) &&
           absl::IsCancelled(
               above->Push({{tensor, Access::kRead}}, 0, Soon())) &&
           absl::IsCancelled(above->Next(absl::InfiniteFuture()).status()) &&
           absl::IsCancelled(above->CommitStep({.step = 1})) &&
           absl::IsCancelled(runtime().Close(Soon()));
  }));
  EXPECT_TRUE(above->Next(Soon())->pins.ok());
  EXPECT_TRUE(above->CommitStep({.step = 1}).ok());
}

TEST_P(DeviceFork, AChildDropsEverythingAndTheParentGoesOn) {
  Make(3, 6);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 12; ++i) world().Fill(*above, tensors[i], i);
  absl::StatusOr<Pin> pin = world().Take(*above, tensors[3], Access::kUpdate);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_TRUE(InChild([&] {
    pin->Discard();
    above.reset();
    // Not the fixture's: what it holds is the parent's.
    delete world().ReleaseRuntime();
    return true;
  }));
  // Neither released nor discarded here.
  EXPECT_TRUE(world().Has(*pin, 3));
  world().Write(*pin, 33);
  pin->Release();
  for (uint8_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(world().Holds(*above, tensors[i], i == 3 ? 33 : i)) << int{i};
  }
  above.reset();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

// Whatever moves over the device's links as a child is made.
TEST_P(DeviceFork, ChildrenAtAnyMomentEndAndDisturbNothing) {
  Make(3, 6);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 12; ++i) world().Fill(*above, tensors[i], i);
  for (int round = 0; round < 4; ++round) {
    for (uint8_t i = 0; i < 12; ++i) {
      ASSERT_TRUE(above->Push({{tensors[i], Access::kRead}}, i, Soon()).ok());
    }
    EXPECT_TRUE(InChild([&] {
      above.reset();
      delete world().ReleaseRuntime();
      return true;
    }));
    for (int i = 0; i < 12; ++i) {
      absl::StatusOr<Ready> ready = above->Next(Soon());
      ASSERT_TRUE(ready.ok() && ready->pins.ok());
      EXPECT_TRUE(
          world().Has(ready->pins->front(), static_cast<uint8_t>(ready->tag)));
    }
  }
}

}  // namespace
}  // namespace terrace
