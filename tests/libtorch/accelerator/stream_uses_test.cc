// Each rule of stream_uses.h, on a device where what a rule leaves out is a
// race that its destructor finds (device_world.h).
#include "libtorch/accelerator/stream_uses.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/libtorch/accelerator/device_world.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(RacingDevice, FindsWhatNothingOrders) {
  RacingDevice device;
  auto block = *device.Allocate(kTensorBytes, kHome);
  device.Fill(block->address(), kHome, std::byte{1});
  device.Read(block->address(), kSide);
  EXPECT_THAT(device.races(), SizeIs(1));
  const auto event = *device.Record(kSide);
  ASSERT_TRUE(device.Await(kHome, *event).ok());
  device.Fill(block->address(), kHome, std::byte{2});
  EXPECT_THAT(device.races(), SizeIs(1));
  block.reset();
  device.Read((*device.Allocate(kTensorBytes, kHome))->address(), 7);
  EXPECT_THAT(device.races(), SizeIs(Not(1)));
}

// Rule 1.
TEST(StreamUses, TheHomeStreamComesAfterTheCopyThatBroughtTheBytes) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_FALSE(tensor.is_here());
  EXPECT_EQ(world.Read(tensor), std::byte{3});
}

TEST(StreamUses, EachOtherStreamComesAfterTheCopyThatBroughtTheBytes) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  // Brought by one, used by all three: none waits for another.
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  EXPECT_EQ(world.Read(tensor, 2), std::byte{3});
  EXPECT_EQ(world.Read(tensor), std::byte{3});
}

TEST(StreamUses, TheCopyComesAfterWhatTheHomeStreamDidWithTheMemoryBefore) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  // Its end gives the memory to the fetch, which nothing has ordered yet.
  world.AllocateAndFill().reset();
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
}

TEST(StreamUses, ABlockThatEndsUnusedIsTheHomeStreamsToHave) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  tensor.tensor->word().Pin();
  ASSERT_TRUE(world.window().Fetch(*tensor.tensor).ok());
  tensor.tensor->word().Unpin();
  tensor.place->Die();
  world.AllocateAndFill();
}

// Rule 2. What is written back is clean: it goes without a copy that would be
// in the streams' order.
TEST(StreamUses, UseOnASideStreamOutlivesAnEviction) {
  DeviceWorld world;
  world.device().SetSlow(true);
  const WorldTensor tensor = world.Add("a", std::byte{3});
  world.MakeClean();
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.window().stats().clean_drops, 1);
  world.AllocateAndFill();
}

TEST(StreamUses, UseOnASideStreamOutlivesTheStorage) {
  DeviceWorld world;
  world.device().SetSlow(true);
  const WorldTensor tensor = world.Add("a", std::byte{3});
  world.MakeClean();
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  tensor.place->Die();
  world.AllocateAndFill();
}

TEST(StreamUses, TheMemoryOfWhatIsCopiedDownIsNotGivenAwayBefore) {
  DeviceWorld world(INT64_MAX, /*budget_bytes=*/kTensorBytes);
  const WorldTensor a = world.Add("a", std::byte{3});
  const WorldTensor b = world.Add("b", std::byte{4});
  EXPECT_EQ(world.window().EvictAll(), 2);
  world.device().SetSlow(true);
  world.Fill(a, std::byte{5});
  EXPECT_EQ(world.Read(b), std::byte{4});  // has the room of the other
  EXPECT_FALSE(a.is_here());
}

TEST(StreamUses, WhatDiesAsItIsCopiedDownKeepsItsMemoryUntilThen) {
  for (const bool is_evicted : {false, true}) {
    DeviceWorld world;
    world.device().SetSlow(true);
    const WorldTensor tensor = world.Add("a", std::byte{3});
    tensor.below->SetOnHold([&] {
      tensor.place->Die();
      return absl::OkStatus();
    });
    if (is_evicted) {
      world.window().EvictAll();
    } else {
      world.MakeClean();
    }
    tensor.below->SetOnHold(nullptr);
    EXPECT_FALSE(tensor.is_here());
    world.AllocateAndFill();
  }
}

TEST(StreamUses, ABlockStaysItsFirstStreamsMemory) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});  // brings it
  // The program knows of one stream, and gives it the next work at once.
  world.Fill(tensor, std::byte{4}, kSide);
  const auto event = *world.device().Record(kSide);
  ASSERT_TRUE(world.device().Await(kHome, *event).ok());
  EXPECT_EQ(world.Read(tensor), std::byte{4});
  tensor.place->Die();
  world.AllocateAndFill(kHome);
}

// Rule 3.
TEST(StreamUses, ACopyToMemoryComesAfterEachStreamsUses) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  const auto event = *world.device().Record(kHome);
  ASSERT_TRUE(world.device().Await(kSide, *event).ok());
  world.Fill(tensor, std::byte{4}, kSide);
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.Read(tensor), std::byte{4});
}

TEST(StreamUses, WhatWritesNextComesAfterACopyOfWhatStays) {
  DeviceWorld world;
  world.device().SetSlow(true);
  const WorldTensor tensor = world.Add("a", std::byte{3});
  world.MakeClean();
  EXPECT_TRUE(tensor.is_here());
  world.Fill(tensor, std::byte{4});
  const auto event = *world.device().Record(kHome);
  ASSERT_TRUE(world.device().Await(kSide, *event).ok());
  world.MakeClean();
  world.Fill(tensor, std::byte{5}, kSide);
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.Read(tensor), std::byte{5});
}

TEST(StreamUses, AFetchWaitsForTheCopyToMemoryThatCameBefore) {
  DeviceWorld world(INT64_MAX, /*budget_bytes=*/kTensorBytes);
  const WorldTensor a = world.Add("a", std::byte{3});
  const WorldTensor b = world.Add("b", std::byte{4});
  EXPECT_EQ(world.window().EvictAll(), 2);
  world.device().SetSlow(true);
  world.Fill(a, std::byte{5});
  EXPECT_EQ(world.Read(b), std::byte{4});
  EXPECT_FALSE(a.is_here());
  EXPECT_EQ(world.Read(a), std::byte{5});
}

// Rule 4.
TEST(StreamUses, NothingIsEvictedDuringACapture) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  world.MakeClean();
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  for (const StreamId stream : {kHome, kSide}) {  // its thread's; its use's
    world.device().BeginCapture(stream);
    EXPECT_EQ(world.window().EvictAll(), 0) << stream;
    EXPECT_EQ(tensor.tensor->uses().FindHindrance(world.device()),
              Hindrance::kCapture);
    world.device().EndCapture(stream);
  }
  // Of one that has never used it: the eviction would be the graph's.
  constexpr StreamId kOther = 9;
  world.device().BeginCapture(kOther);
  RacingDevice::SetCurrent(kOther);
  EXPECT_EQ(world.window().EvictAll(), 0);
  world.device().EndCapture(kOther);
  RacingDevice::SetCurrent(kHome);
  EXPECT_EQ(world.window().EvictAll(), 1);
}

TEST(StreamUses, WhatAGraphHasUsedStays) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  world.device().BeginCapture(kHome);
  EXPECT_TRUE(world.Begin(tensor, kHome, /*is_written=*/false).ok());
  world.End(tensor);
  world.device().EndCapture(kHome);
  EXPECT_EQ(world.window().EvictAll(), 0);
  EXPECT_EQ(tensor.tensor->uses().FindHindrance(world.device()),
            Hindrance::kGraph);
}

TEST(StreamUses, ACaptureCannotBringATensor) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  world.device().BeginCapture(kHome);
  const absl::Status status = world.Begin(tensor, kHome, false);
  world.End(tensor);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(tensor.place->refusal(), HasSubstr("terrace: 'a'"));
  EXPECT_THAT(tensor.place->refusal(), HasSubstr("captured"));
  world.device().EndCapture(kHome);
  EXPECT_EQ(world.Read(tensor), std::byte{3});
  EXPECT_THAT(tensor.place->refusal(), IsEmpty());
}

TEST(StreamUses, NothingIsBroughtForAHomeStreamThatIsCaptured) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  world.device().BeginCapture(kHome);  // by another thread
  EXPECT_TRUE(absl::IsFailedPrecondition(world.Begin(tensor, kSide, false)));
  world.End(tensor);
  world.device().EndCapture(kHome);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
}

TEST(StreamUses, ACaptureCannotWaitForBytesThatArrive) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.Read(tensor), std::byte{3});
  world.device().BeginCapture(kSide);
  EXPECT_TRUE(absl::IsFailedPrecondition(world.Begin(tensor, kSide, false)));
  world.End(tensor);
  EXPECT_THAT(tensor.place->refusal(), HasSubstr("lease"));
  world.device().EndCapture(kSide);
  // As a lease does.
  ASSERT_TRUE(tensor.tensor->uses().Settle(world.device()).ok());
  world.device().BeginCapture(kSide);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  EXPECT_THAT(tensor.place->refusal(), IsEmpty());
  world.device().EndCapture(kSide);
}

// Rule 5.
TEST(StreamUses, WhatACollectiveHasSeenStaysUntilTheStepsEnd) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  ASSERT_TRUE(world.Begin(tensor, kHome, false).ok());
  tensor.tensor->uses().NoteCollective();
  world.End(tensor);
  // On a stream that is not seen here; the program has ordered its beginning.
  constexpr StreamId kUnseen = 55;
  const auto event = *world.device().Record(kHome);
  ASSERT_TRUE(world.device().Await(kUnseen, *event).ok());
  world.device().Read(tensor.place->address(), kUnseen);
  EXPECT_EQ(world.window().EvictAll(), 0);
  world.window().BeginStep();
  EXPECT_EQ(world.device().waits_for_all(), 0);
  EXPECT_EQ(world.window().EvictAll(), 1);
  EXPECT_EQ(world.device().waits_for_all(), 1);
  world.AllocateAndFill();
}

TEST(StreamUses, ACollectiveOfThisStepCountsThoughOneCameBefore) {
  DeviceWorld world;
  const WorldTensor tensor = world.Add("a", std::byte{3});
  tensor.tensor->uses().NoteCollective();
  world.window().BeginStep();
  tensor.tensor->uses().NoteCollective();
  EXPECT_EQ(world.window().EvictAll(), 0);
  world.window().BeginStep();
  world.window().BeginStep();
  EXPECT_EQ(world.window().EvictAll(), 1);
}

}  // namespace
}  // namespace terrace
