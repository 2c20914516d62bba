// A copy to or from a device that fails while the device goes on: what becomes
// of the tensor, and of those that wait for its room.
#include "tests/contract/device/device_contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kPage = 4096;

// A tensor that a disk has is not lost with the device's copy of it: it may be
// asked for again, and its step hears nothing that is for good.
TEST(DeviceFailure, WhatTheDeviceLosesIsUnavailableWhereADiskHasItToo) {
  constexpr int64_t kPlace = 2 * kPage;
  TestRuntime world(
      TestWorld::kHbmVirtual,
      {.budget_bytes = 6 * kPlace, .hbm_bytes = 4 * kPlace, .prefetch = false});
  const std::vector<TensorId> tensors = world.RegisterMany(12, kPage);
  auto filling = world.OpenQueue(kPage, 1);
  for (uint8_t i = 0; i < 12; ++i) world.Fill(*filling, tensors[i], i);
  filling.reset();
  auto above = world.OpenQueue(kPage, 1, "hbm");
  auto below = world.OpenQueue(kPage, 1);
  const auto bytes_read = [&] {
    return world.runtime().GetStats().bytes_read();
  };
  const int64_t before = bytes_read();
  EXPECT_TRUE(world.Holds(*above, tensors[0], 0));
  ASSERT_GT(bytes_read(), before);  // memory does not have it

  ASSERT_TRUE(below->BeginStep(1).ok());
  world.hbm().faults().Fail(0, absl::DataLossError("a cell went bad"));
  const absl::Status gone =
      world.Take(*below, tensors[0], Access::kRead).status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()),
              testing::AllOf(HasSubstr("a cell went bad"),
                             HasSubstr("it is whole on ")));
  const absl::Status step = below->CommitStep({.step = 1});
  EXPECT_TRUE(absl::IsUnavailable(step)) << step;
  EXPECT_TRUE(world.Holds(*below, tensors[0], 0));
  EXPECT_TRUE(world.Holds(*above, tensors[0], 0));
}

// A writer on the device, whose fetch failed, leaves memory's copy as it was.
TEST(DeviceFailure, WhatAWriterDidNotGetGoesDownAllTheSame) {
  // Each window's room and the staging of the device's, and no more.
  TestRuntime world(
      TestWorld::kHbmVirtual,
      {.budget_bytes = WindowBytes(kPage, 1) + StagingBytes(kPage, 1),
       .hbm_bytes = WindowBytes(kPage, 1),
       .prefetch = false});
  const TensorId tensor = world.Register("a", kPage);
  const TensorId other = world.Register("b", kPage);
  auto above = world.OpenQueue(kPage, 1, "hbm");
  auto below = world.OpenQueue(kPage, 1);
  world.hbm().faults().Fail(0, absl::UnavailableError("not now"));
  world.Fill(*below, tensor, 1);
  const absl::Status gone =
      world.Take(*above, tensor, Access::kUpdate).status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  world.Fill(*below, other, 2);
  EXPECT_TRUE(world.Holds(*below, tensor, 1));
  EXPECT_TRUE(world.Holds(*above, other, 2));
}

// Its readers keep what they have; nothing waits for it after them.
TEST(DeviceFailure, WhatWasLostUnderAPinGoesWithThePin) {
  TestRuntime world(TestWorld::kHbmVirtual,
                    {.budget_bytes = 16 * kPage, .hbm_bytes = 4 * kPage});
  const TensorId tensor = world.Register("a", kPage);
  auto above = world.OpenQueue(kPage, 2, "hbm");
  auto below = world.OpenQueue(kPage, 1);
  world.Fill(*above, tensor, 1);
  absl::StatusOr<Pin> pin = world.Take(*above, tensor, Access::kRead);
  ASSERT_TRUE(pin.ok()) << pin.status();
  world.hbm().faults().Fail(0, absl::DataLossError("a cell went bad"));
  const absl::Status gone = world.Take(*below, tensor, Access::kRead).status();
  ASSERT_TRUE(absl::IsDataLoss(gone)) << gone;
  EXPECT_TRUE(world.Has(*pin, 1));
  pin->Release();
  EXPECT_TRUE(
      absl::IsDataLoss(world.Take(*above, tensor, Access::kRead).status()));
  const std::vector<TensorId> others = world.RegisterMany(4, kPage);
  for (uint8_t i = 0; i < 4; ++i) world.Fill(*above, others[i], i);
  for (uint8_t i = 0; i < 4; ++i)
    EXPECT_TRUE(world.Holds(*below, others[i], i));
}

}  // namespace
}  // namespace terrace
