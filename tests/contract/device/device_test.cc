// Queues on a device's memory beside those in the host's: contents, pins at
// both, who leaves for whom, and what is refused.
#include "tests/contract/device/device_contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TERRACE_DEVICE_WORLDS(DeviceContractTest);

TEST_P(DeviceContractTest, APinHasADevicesAddressAndNoData) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto queue = OnDevice(1);
  absl::StatusOr<Pin> pin = world().Take(*queue, tensor, Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_TRUE(pin->data().empty());
  EXPECT_NE(pin->address(), 0u);
  world().Write(*pin, 7);
  pin->Release();
  EXPECT_EQ(pin->address(), 0u);
  EXPECT_TRUE(world().Holds(*queue, tensor, 7));
  auto below = InMemory(1);
  absl::StatusOr<Pin> here = world().Take(*below, tensor, Access::kRead);
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->address(), reinterpret_cast<uintptr_t>(here->data().data()));
  EXPECT_TRUE(HasPattern(here->data(), 7));
}

TEST_P(DeviceContractTest, TheNewestComesToWhereItIsAskedFor) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  for (uint8_t i = 0; i < 6; ++i) {
    world().Fill(i % 2 == 0 ? *above : *below, tensor, i);
    EXPECT_TRUE(world().Holds(*above, tensor, i));
    EXPECT_TRUE(world().Holds(*below, tensor, i));
  }
}

TEST_P(DeviceContractTest, WhatRestsOnADiskComesUpWithoutACopyInMemory) {
  Make(4, 6);  // of memory the window's staging has 2 places
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  {
    auto below = InMemory(1);
    for (uint8_t i = 0; i < 12; ++i) world().Fill(*below, tensors[i], i);
  }
  auto above = OnDevice(1);
  for (int round = 0; round < 2; ++round) {
    for (uint8_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(world().Holds(*above, tensors[i], i)) << int{i};
    }
  }
  EXPECT_GT(stats().bytes_read(), 0);
}

TEST_P(DeviceContractTest, UpdatesThatFitNeitherTierEndUpOnDisks) {
  Make(3, 6);
  const std::vector<TensorId> tensors = world().RegisterMany(20, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 20; ++i) world().Fill(*above, tensors[i], i);
  for (uint8_t round = 1; round < 4; ++round) {
    for (uint8_t i = 0; i < 20; ++i) {
      absl::StatusOr<Pin> pin =
          world().Take(*above, tensors[i], Access::kUpdate);
      ASSERT_TRUE(pin.ok()) << pin.status();
      const uint8_t before = static_cast<uint8_t>(i + 20 * (round - 1));
      EXPECT_TRUE(world().Has(*pin, before));
      world().Write(*pin, static_cast<uint8_t>(before + 20));
    }
  }
  EXPECT_GT(stats().bytes_written(), 0);
  EXPECT_LE(device_stats().peak_bytes, 3 * kPlace);
  EXPECT_LE(stats().host.peak_bytes, 6 * kPlace);
}

TEST_P(DeviceContractTest, WhatLeavesTheDeviceStaysInMemoryWhereThereIsRoom) {
  Make(3, 24);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto above = OnDevice(2);
  for (uint8_t round = 0; round < 3; ++round) {
    for (uint8_t i = 0; i < 12; ++i) {
      world().Fill(*above, tensors[i], static_cast<uint8_t>(i + round));
    }
  }
  for (uint8_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(world().Holds(*above, tensors[i], static_cast<uint8_t>(i + 2)));
  }
  EXPECT_EQ(stats().bytes_written(), 0);
  EXPECT_EQ(stats().bytes_read(), 0);
  EXPECT_GT(Moved(0), 0);  // up
  EXPECT_GT(Moved(1), 0);  // down
}

TEST_P(DeviceContractTest, WithoutDisksMemoryIsBelowTheDevice) {
  TestRuntimeOptions options;
  options.paths = 0;
  Make(2, 16, options);
  const std::vector<TensorId> tensors = world().RegisterMany(8, kPage);
  auto above = OnDevice(2);
  for (uint8_t i = 0; i < 8; ++i) world().Fill(*above, tensors[i], i);
  for (uint8_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(world().Holds(*above, tensors[i], i));
  }
}

TEST_P(DeviceContractTest, ReadersShareATensorOverBothTiersAWriterIsAlone) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  auto writer = OnDevice(1);
  world().Fill(*below, tensor, 3);
  absl::StatusOr<Pin> up = world().Take(*above, tensor, Access::kRead);
  absl::StatusOr<Pin> down = world().Take(*below, tensor, Access::kRead);
  ASSERT_TRUE(up.ok() && down.ok());
  ASSERT_TRUE(writer->Push({{tensor, Access::kUpdate}}, 1, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(writer->Next(Shortly()).status()));
  up->Release();
  EXPECT_TRUE(absl::IsDeadlineExceeded(writer->Next(Shortly()).status()));
  down->Release();
  absl::StatusOr<Ready> ready = writer->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  ASSERT_TRUE(below->Push({{tensor, Access::kRead}}, 1, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(below->Next(Shortly()).status()));
  world().Write(ready->pins->front(), 4);
  ready->pins->front().Release();
  ready = below->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_TRUE(HasPattern(ready->pins->front().data(), 4));
}

TEST_P(DeviceContractTest, OwnPinsOnTheOtherTierAreSaidToBlock) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(2);
  world().Fill(*above, tensor, 3);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kRead);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(above->Push({{tensor, Access::kUpdate}}, 1, Soon()).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(above->Next(Soon()).status()));
}

TEST_P(DeviceContractTest, ADiscardFallsBackOnWhatMemoryHas) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*below, tensor, 3);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kUpdate);
  ASSERT_TRUE(pin.ok());
  world().Write(*pin, 9);
  pin->Discard();
  EXPECT_TRUE(world().Holds(*above, tensor, 3));
  pin = world().Take(*above, tensor, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  world().Write(*pin, 9);
  pin->ReleaseUnchanged();
  EXPECT_TRUE(world().Holds(*below, tensor, 3));
}

TEST_P(DeviceContractTest, MemoryKeepsWhatAWriterOnTheDeviceMayFallBackOn) {
  Make(4, 6);  // two of them the staging, one the window
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*below, tensors[0], 3);  // stays outside the window
  absl::StatusOr<Pin> pin =
      world().Take(*above, tensors[0], Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  for (uint8_t i = 1; i < 12; ++i) world().Fill(*below, tensors[i], i);
  world().Write(*pin, 9);
  pin->ReleaseUnchanged();
  EXPECT_TRUE(world().Holds(*above, tensors[0], 3));
  for (uint8_t i = 1; i < 12; ++i) {
    EXPECT_TRUE(world().Holds(*below, tensors[i], i)) << int{i};
  }
}

TEST_P(DeviceContractTest, WhatIsDiscardedWhereItIsOnlyIsLost) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  world().Fill(*above, tensor, 3);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kUpdate);
  ASSERT_TRUE(pin.ok());
  pin->Discard();
  EXPECT_TRUE(
      absl::IsDataLoss(world().Take(*above, tensor, Access::kRead).status()));
}

TEST_P(DeviceContractTest, AWindowHasRoomOnBothTiersOrNone) {
  Make(8, 8);
  auto below = InMemory(6);
  // Two slots of staging in each direction.
  const auto refused = runtime().OpenQueue(kPage, 4, Soon(), kHbm);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(Message(refused.status()), HasSubstr("staging of 32768 bytes"));
  EXPECT_EQ(device_stats().used_bytes, 0);
  EXPECT_EQ(stats().host.used_bytes, 6 * kPlace);
  auto above = OnDevice(1);  // one in each
  EXPECT_EQ(device_stats().used_bytes, kPlace);
  EXPECT_EQ(stats().host.used_bytes, 8 * kPlace);
  above.reset();
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().host.used_bytes == 6 * kPlace; }));
  EXPECT_EQ(device_stats().used_bytes, 0);
}

TEST_P(DeviceContractTest, ResidentsOfBothTiersLeaveForAWindow) {
  Make(8, 8);
  const std::vector<TensorId> tensors = world().RegisterMany(14, kPage);
  {
    auto above = OnDevice(1);
    for (uint8_t i = 0; i < 6; ++i) world().Fill(*above, tensors[i], i);
  }
  {
    auto below = InMemory(1);
    for (uint8_t i = 6; i < 14; ++i) world().Fill(*below, tensors[i], i);
  }
  auto above = OnDevice(8);  // all of it, and half of the memory
  ASSERT_NE(above, nullptr);
  for (uint8_t i = 0; i < 14; ++i) {
    EXPECT_TRUE(world().Holds(*above, tensors[i], i)) << int{i};
  }
}

TEST_P(DeviceContractTest, WhatIsTooLargeForAllStagingLeavesThroughMemory) {
  Make(8, 12);
  const TensorId big = world().Register("big", 5 * kPage);  // of three places
  const std::vector<TensorId> tensors = world().RegisterMany(20, kPage);
  {
    auto above = world().OpenQueue(5 * kPage, 1, kHbm);
    world().Fill(*above, big, 77);  // stays outside the window
  }
  {
    auto below = InMemory(1);
    for (uint8_t i = 0; i < 20; ++i) world().Fill(*below, tensors[i], i);
  }
  auto above = OnDevice(6);  // five places are free
  ASSERT_NE(above, nullptr);
  above.reset();
  auto below = world().OpenQueue(5 * kPage, 1);
  EXPECT_TRUE(world().Holds(*below, big, 77));
  for (uint8_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(world().Holds(*below, tensors[i], i)) << int{i};
  }
}

TEST_P(DeviceContractTest, QueuesAreOnlyWhereCustomersWork) {
  Make(4, 16);
  for (const TierKind kind :
       {TierKind::kFar, TierKind::kPmem, TierKind::kDisk}) {
    const auto refused =
        runtime().OpenQueue(kPage, 1, Soon(), TierKindName(kind));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
    EXPECT_THAT(Message(refused.status()), HasSubstr(TierKindName(kind)));
  }
  const auto large = runtime().OpenQueue(kPage, 5, Soon(), kHbm);
  EXPECT_TRUE(absl::IsResourceExhausted(large.status()));
  EXPECT_THAT(Message(large.status()), HasSubstr("the budget is 32768"));
}

TEST(DeviceContract, ARuntimeWithoutADeviceHasNoQueuesThere) {
  TestRuntime world(TestWorld::kVirtual, {});
  const auto refused = world.runtime().OpenQueue(4096, 1, world.Soon(), "hbm");
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("hbm"));
}

TEST_P(DeviceContractTest, StatsTellOfTheDeviceAndItsLinks) {
  Make(4, 16);
  const Stats now = stats();
  ASSERT_EQ(now.tiers.size(), 3u);
  EXPECT_EQ(now.tiers[0].kind, TierKind::kDram);
  EXPECT_EQ(now.tiers[1].name, "hbm:cuda:0");
  EXPECT_EQ(now.tiers[1].kind, TierKind::kHbm);
  EXPECT_EQ(now.tiers[1].budget_bytes, 4 * kPlace);
  ASSERT_EQ(now.links.size(), 4u);
  EXPECT_EQ(now.links[0].from, now.tiers[0].name);
  EXPECT_EQ(now.links[0].to, "hbm:cuda:0");
  EXPECT_EQ(now.links[1].from, "hbm:cuda:0");
  EXPECT_EQ(now.links[1].to, now.tiers[0].name);
}

TEST_P(DeviceContractTest, ATensorOnTheDeviceCanGo) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto below = InMemory(1);
  world().Fill(*above, tensor, 3);
  EXPECT_TRUE(world().Holds(*below, tensor, 3));
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kRead);
  ASSERT_TRUE(pin.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime().Unregister(tensor)));
  pin->Release();
  EXPECT_TRUE(runtime().Unregister(tensor).ok());
  above.reset();
  below.reset();
  EXPECT_TRUE(world().WaitUntil([&] {
    return stats().host.used_bytes + device_stats().used_bytes == 0;
  }));
}

TEST_P(DeviceContractTest, CloseNamesThePinsOnTheDevice) {
  Make(4, 16);
  const TensorId tensor = world().Register("held", kPage);
  auto above = OnDevice(1);
  world().Fill(*above, tensor, 3);
  absl::StatusOr<Pin> pin = world().Take(*above, tensor, Access::kRead);
  ASSERT_TRUE(pin.ok());
  const absl::Status refused = runtime().Close(Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("'held'"));
  pin->Release();
  above.reset();
  EXPECT_TRUE(runtime().Close(Soon()).ok());
}

TEST_P(DeviceContractTest, AStepIsReadAheadToTheDevice) {
  Make(4, 8);
  const std::vector<TensorId> tensors = world().RegisterMany(16, kPage);
  auto above = OnDevice(3);
  for (uint8_t i = 0; i < 16; ++i) world().Fill(*above, tensors[i], i);
  for (int step = 1; step < 4; ++step) {
    ASSERT_TRUE(above->BeginStep(step).ok());
    for (uint8_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(world().Holds(*above, tensors[i], i)) << int{i};
    }
    EXPECT_TRUE(above->CommitStep({step}).ok());
  }
  EXPECT_GT(stats().prefetch_hits, 0);
}

// What one tier has in place is no hit of the other.
TEST_P(DeviceContractTest, EachTierCountsItsOwnHits) {
  Make(8, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  auto memory = InMemory(1);
  world().Fill(*above, tensor, 3);
  ASSERT_EQ(stats().tiers[0].hits + stats().tiers[1].hits, 0);
  EXPECT_TRUE(world().Holds(*above, tensor, 3));
  EXPECT_EQ(stats().tiers[1].hits, 1);
  EXPECT_EQ(stats().tiers[0].hits, 0);
  EXPECT_TRUE(world().Holds(*memory, tensor, 3));
  EXPECT_TRUE(world().Holds(*memory, tensor, 3));
  const Stats after = stats();
  EXPECT_EQ(after.tiers[1].hits, 1);
  EXPECT_GE(after.tiers[0].hits, 1);
  EXPECT_EQ(after.hits, after.tiers[0].hits + after.tiers[1].hits);
}

TEST_P(DeviceContractTest, AHintBringsATensorIntoMemory) {
  Make(4, 16);
  const TensorId tensor = world().Register("a", kPage);
  auto above = OnDevice(1);
  world().Fill(*above, tensor, 3);
  runtime().Prefetch({tensor});
  EXPECT_TRUE(world().Holds(*above, tensor, 3));  // it is nearer already
  EXPECT_EQ(Moved(1), 0);
}

}  // namespace
}  // namespace terrace
