// Each rule of stream_uses.h, on a device where what a rule leaves out is a
// race, which the world's end finds (stream_world.h).
#include "libtorch/accelerator/stream_uses.h"

#include "tests/libtorch/accelerator/stream_world.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(RacingDevice, FindsWhatNothingOrders) {
  RacingDevice device;
  auto block = device.Allocate(kTensorBytes, kHome);
  device.Fill(*block, kHome, std::byte{1});
  device.Read(*block, kSide);
  EXPECT_THAT(device.races(), SizeIs(1));
  const auto event = *device.Record(kSide);
  ASSERT_TRUE(device.Await(kHome, *event).ok());
  device.Fill(*block, kHome, std::byte{2});
  EXPECT_THAT(device.races(), SizeIs(1));
  block.reset();
  device.Read(*device.Allocate(kTensorBytes, kHome), 7);
  EXPECT_THAT(device.races(), SizeIs(Not(1)));
}

// A use waits for the copy.
TEST(StreamUses, TheHomeStreamComesAfterTheCopyThatBroughtTheBytes) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.Read(tensor), std::byte{3});
}

TEST(StreamUses, EachOtherStreamComesAfterTheCopyThatBroughtTheBytes) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  // Brought by one, used by all three: none waits for another.
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  EXPECT_EQ(world.Read(tensor, 2), std::byte{3});
  EXPECT_EQ(world.Read(tensor), std::byte{3});
}

TEST(StreamUses, TheCopyComesAfterWhatTheHomeStreamDidWithTheMemoryBefore) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  // Its end gives the memory to the fetch, which nothing has ordered yet.
  world.AllocateAndFill().reset();
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
}

TEST(StreamUses, ABlockThatEndsUnusedIsTheHomeStreamsToHave) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  world.Bring(tensor);
  tensor.block.reset();
  world.AllocateAndFill();
}

// Each stream is recorded. What is written back is clean: it goes without a
// copy that would be in the streams' order.
TEST(StreamUses, UseOnASideStreamOutlivesAnEviction) {
  StreamWorld world;
  world.device().SetSlow(true);
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.WriteBack(tensor);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  EXPECT_FALSE(tensor.is_written);
  EXPECT_TRUE(world.Evict(tensor));
  world.AllocateAndFill();
}

TEST(StreamUses, UseOnASideStreamOutlivesTheStorage) {
  StreamWorld world;
  world.device().SetSlow(true);
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.WriteBack(tensor);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  tensor.block.reset();
  world.AllocateAndFill();
}

TEST(StreamUses, TheMemoryOfWhatIsCopiedDownIsNotGivenAwayBefore) {
  StreamWorld world;
  world.device().SetSlow(true);
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  world.AllocateAndFill();
}

TEST(StreamUses, ABlockStaysItsFirstStreamsMemory) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});  // brings it
  // The program knows of one stream, and gives it the next work at once.
  world.Fill(tensor, std::byte{4}, kSide);
  world.Order(kSide, kHome);
  EXPECT_EQ(world.Read(tensor), std::byte{4});
  tensor.block.reset();
  world.AllocateAndFill();
}

// A copy down waits for the uses.
TEST(StreamUses, ACopyToMemoryComesAfterEachStreamsUses) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.Order(kHome, kSide);
  world.Fill(tensor, std::byte{4}, kSide);
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.Read(tensor), std::byte{4});
}

TEST(StreamUses, WhatWritesNextComesAfterACopyOfWhatStays) {
  StreamWorld world;
  world.device().SetSlow(true);
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.WriteBack(tensor);
  world.Fill(tensor, std::byte{4});
  world.Order(kHome, kSide);
  world.WriteBack(tensor);
  world.Fill(tensor, std::byte{5}, kSide);
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.Read(tensor), std::byte{5});
}

// Graphs' tensors stay.
TEST(StreamUses, NothingIsEvictedDuringACapture) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.WriteBack(tensor);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  for (const StreamId stream : {kHome, kSide}) {  // its thread's; its use's
    world.device().BeginCapture(stream);
    EXPECT_FALSE(world.Evict(tensor)) << stream;
    EXPECT_EQ(tensor.uses.FindHindrance(world.device()), Hindrance::kCapture);
    world.device().EndCapture(stream);
  }
  // Of one that has never used it: the eviction would be the graph's.
  constexpr StreamId kOther = 9;
  world.device().BeginCapture(kOther);
  RacingDevice::SetCurrent(kOther);
  EXPECT_FALSE(world.Evict(tensor));
  world.device().EndCapture(kOther);
  RacingDevice::SetCurrent(kHome);
  EXPECT_TRUE(world.Evict(tensor));
}

TEST(StreamUses, WhatAGraphHasUsedStays) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.device().BeginCapture(kHome);
  EXPECT_TRUE(world.Use(tensor, kHome, /*is_written=*/false).ok());
  world.device().EndCapture(kHome);
  EXPECT_FALSE(world.Evict(tensor));
  EXPECT_EQ(tensor.uses.FindHindrance(world.device()), Hindrance::kGraph);
}

TEST(StreamUses, ACaptureCannotWaitForBytesThatArrive) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.Read(tensor), std::byte{3});
  world.device().BeginCapture(kSide);
  const absl::Status status = world.Use(tensor, kSide, /*is_written=*/false);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lease"));
  world.device().EndCapture(kSide);
  // As a lease does.
  ASSERT_TRUE(tensor.uses.Settle(world.device()).ok());
  world.device().BeginCapture(kSide);
  EXPECT_EQ(world.Read(tensor, kSide), std::byte{3});
  world.device().EndCapture(kSide);
}

// Collectives' tensors stay.
TEST(StreamUses, WhatACollectiveHasSeenStaysUntilTheStepsEnd) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  ASSERT_TRUE(world.Use(tensor, kHome, /*is_written=*/false).ok());
  tensor.uses.NoteCollective();
  // On a stream that is not seen here; the program has ordered its beginning.
  constexpr StreamId kUnseen = 55;
  world.Order(kHome, kUnseen);
  world.device().Read(*tensor.block, kUnseen);
  EXPECT_FALSE(world.Evict(tensor));
  tensor.uses.NoteStep();
  EXPECT_EQ(world.device().waits_for_all(), 0);
  EXPECT_TRUE(world.Evict(tensor));
  EXPECT_EQ(world.device().waits_for_all(), 1);
  world.AllocateAndFill();
}

TEST(StreamUses, ACollectiveOfThisStepCountsThoughOneCameBefore) {
  StreamWorld world;
  StreamedTensor& tensor = world.Add(std::byte{3});
  tensor.uses.NoteCollective();
  tensor.uses.NoteStep();
  tensor.uses.NoteCollective();
  EXPECT_FALSE(world.Evict(tensor));
  tensor.uses.NoteStep();
  tensor.uses.NoteStep();
  EXPECT_TRUE(world.Evict(tensor));
}

// All that the rules are for, in one program.
void UseEvictAndReuse(StreamWorld& world) {
  world.device().SetSlow(true);
  StreamedTensor& tensor = world.Add(std::byte{3});
  world.Order(kHome, kSide);
  world.Fill(tensor, std::byte{4}, kSide);
  world.Evict(tensor);
  world.AllocateAndFill().reset();
  world.Read(tensor, kSide);
  world.Evict(tensor);
  world.AllocateAndFill();
  world.device().BeginCapture(kHome);
  world.Evict(world.Add(std::byte{5}));
  world.device().EndCapture(kHome);
  StreamedTensor& shared = world.Add(std::byte{6});
  world.WriteBack(shared);
  shared.uses.NoteCollective();
  constexpr StreamId kUnseen = 55;
  world.Order(kHome, kUnseen);
  world.device().Read(*shared.block, kUnseen);
  if (world.Evict(shared)) world.AllocateAndFill();
}

TEST(StreamRules, AProgramThatKeepsAllHasNoRace) {
  StreamWorld world;
  UseEvictAndReuse(world);
}

TEST(StreamRules, EachThatIsSwitchedOffLeavesARace) {
  for (const StreamRuleText& rule : kStreamRules) {
    SCOPED_TRACE(rule.text);
    StreamWorld world(StreamRules().Without(rule.rule),
                      /*is_race_expected=*/true);
    UseEvictAndReuse(world);
  }
}

}  // namespace
}  // namespace terrace
