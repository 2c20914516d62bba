// What leaves where others need the room, and what comes beyond the budget.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/window/window_room.h"
#include "terrace/byte_queue.h"
#include "terrace/runtime.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class WindowRecallTest : public ByteWindowTest {
 protected:
  // Another customer takes as much as one tensor of the window does.
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenOther(int64_t pages) {
    return world().runtime().OpenQueue(pages * kPage, 1,
                                       absl::Now() + absl::Seconds(30));
  }
  std::vector<int> All() const {
    std::vector<int> all(static_cast<size_t>(count()));
    for (int i = 0; i < count(); ++i) all[static_cast<size_t>(i)] = i;
    return all;
  }
  ByteQueueStats bytes() { return world().runtime().GetStats().bytes; }
};

TEST_F(WindowRecallTest, WhatNobodyUsesLeavesForAnotherCustomer) {
  Make(9);
  Fill({3, 3});
  const auto other = OpenOther(3);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(IsHere(0) + IsHere(1), 1);
  EXPECT_GT(bytes().recalls, 0);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Read(i).ok());
}

TEST_F(WindowRecallTest, WhatIsInUseLeavesWithItsLastUse) {
  Make(9);
  Fill({3, 3});
  ASSERT_TRUE(Take({0, 1}).ok());
  tensor(0).word().Pin();  // another one's use
  tensor(0).MarkWritten();
  WritePattern(tensor(0).bytes(), 77);
  auto opened = std::async(std::launch::async, [&] { return OpenOther(3); });
  EXPECT_EQ(opened.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  window().EndUse(tensor(0));
  EXPECT_TRUE(HasPattern(tensor(0).bytes(), 77));
  window().EndUse(tensor(0));
  EXPECT_FALSE(IsHere(0));
  const auto other = opened.get();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(bytes().keeps, 2);
  window().EndUse(tensor(1));
  EXPECT_TRUE(Read(0, 77).ok());
  EXPECT_TRUE(Read(1).ok());
}

TEST_F(WindowRecallTest, AGroupIsThereAtATimeBeyondTheBudgetToo) {
  Make(8);  // four tensors of one page
  Fill(std::vector<int64_t>(10, 1));
  EvictClean();
  ASSERT_TRUE(Take(All(), {.operation = "cat"}).ok());
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(HasPattern(tensor(i).bytes(), static_cast<uint8_t>(i))) << i;
  }
  EXPECT_EQ(bytes().groups_beyond, 1);
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, (20 - 8) * kPage);
  EXPECT_EQ(window().stats().peaks.over_budget_operation, "cat");
  EXPECT_LE(world().runtime().GetStats().host.peak_bytes, 8 * kPage);
  const int64_t before = written();
  for (const int i : {1, 4, 7}) {
    tensor(i).MarkWritten();
    WritePattern(tensor(i).bytes(), static_cast<uint8_t>(100 + i));
  }
  EndUses(All());
  EXPECT_LE(window().stats().used_bytes, 8 * kPage);
  for (int i = 0; i < 10; ++i) {
    const bool is_written = i == 1 || i == 4 || i == 7;
    EXPECT_TRUE(Read(i, static_cast<uint8_t>(is_written ? 100 + i : i)).ok());
  }
  EXPECT_GE(written(), before + 3 * kPage);
  EXPECT_TRUE(world().WaitUntil([&] { return bytes().beyond_bytes == 0; }));
}

TEST_F(WindowRecallTest, WhatComesBeyondTheBudgetIsLimited) {
  Make(8, 0, {.beyond_bytes = 12 * kPage - 1});
  Fill(std::vector<int64_t>(10, 1));
  const absl::Status taken = Take(All());
  EXPECT_TRUE(IsNoRoom(taken)) << taken;
  EndUses(All());
  EXPECT_EQ(window().stats().used_bytes, 8 * kPage);
  // As many as fit.
  ASSERT_TRUE(Take({0, 1, 2, 3, 4, 5, 6, 7, 8}).ok());
  EndUses({0, 1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(window().stats().failures, 6);  // the operation was refused these
}

TEST_F(WindowRecallTest, ATensorThatEntersStaysOutsideTheBudgetAsItIs) {
  Make(8);
  Fill({3, 3});
  ASSERT_TRUE(Take({0, 1}).ok());
  FakeTensor own("its own", 3 * kPage);
  ASSERT_TRUE(window().Add({&own}).ok());
  const std::vector<std::byte> source(3 * kPage);
  WindowTensor* const in_use[] = {&tensor(0), &tensor(1)};
  own.word().Pin();
  const absl::Status filled =
      window().Fill(own, source.data(), {.in_use = in_use});
  EXPECT_TRUE(IsNoRoom(filled)) << filled;
  EXPECT_EQ(own.data, nullptr);
  window().EndUse(own);
  EndUses({0, 1});
  Remove(own);
}

// Of two threads each has what the other brings, and brings what it lacks.
TEST_F(WindowRecallTest, ThreadsThatTakeTheSameTensorsBothHaveThem) {
  Make(8);  // two tensors
  Fill({3, 3, 3});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 500; ++i) {
        const int first = (thread + i) % 3;
        ASSERT_TRUE(Take({first}).ok());
        WindowTensor* const in_use[] = {&tensor(first)};
        const int second = (first + 1) % 3;
        const absl::Status taken = Take({second}, {.in_use = in_use});
        ASSERT_TRUE(taken.ok()) << taken;
        for (const int each : {first, second}) {
          EXPECT_TRUE(
              HasPattern(tensor(each).bytes(), static_cast<uint8_t>(each)));
          window().EndUse(tensor(each));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(window().stats().failures, 0);
  EXPECT_LE(world().runtime().GetStats().host.peak_bytes, 8 * kPage);
}

TEST_F(WindowRecallTest, OneTensorThatCannotBeReadFailsAlone) {
  Make(8);
  Fill({1, 1, 1, 1, 1, 1});
  EvictClean();
  for (const int i : {4, 5}) ASSERT_TRUE(Read(i).ok());
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  const absl::Status taken = Take({0, 4});
  world().faults().Clear();
  EXPECT_THAT(std::string(taken.message()), HasSubstr("ENXIO"));
  EXPECT_EQ(tensor(0).word().state(), Residency::kFailed);
  EXPECT_TRUE(HasPattern(tensor(4).bytes(), 4));
  EndUses({0, 4});
}

TEST_F(WindowRecallTest, WhereThereIsNoMemoryAnOperationIsToldWhy) {
  Make(8, 0, {.beyond_bytes = 0});
  Fill({3, 3, 3});
  ASSERT_TRUE(Take({1, 2}).ok());
  WindowTensor* const in_use[] = {&tensor(1), &tensor(2)};
  const absl::Status taken = Take(
      {0},
      {.operation = "cat", .operation_bytes = 12 * kPage, .in_use = in_use});
  EXPECT_TRUE(IsNoRoom(taken)) << taken;
  EXPECT_THAT(
      tensor(0).refusal,
      StartsWith("terrace: 'tensor 0' 12 KiB: cat takes 48 KiB at a time, the "
                 "budget is 32 KiB, and of memory beside it 0 bytes are "
                 "available: "));
  EXPECT_EQ(tensor(0).word().state(), Residency::kCold);
  EXPECT_EQ(window().stats().failures, 1);
  EndUses({0, 1, 2});
  EXPECT_TRUE(Read(0).ok()) << "the next use tries it again";
}

// What was said of a tensor that waits is taken back: its room came.
TEST_F(WindowRecallTest, WhatWaitedForSomethingElseIsAskedForAfterwards) {
  Make(8);
  Fill({3, 3, 3});
  ASSERT_TRUE(Take({1, 2}).ok());
  window().BeginWaiting(tensor(1));
  auto taken = std::async(std::launch::async, [&] { return Take({0}); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  window().EndWaiting(tensor(1));
  window().EndUse(tensor(1));
  EXPECT_TRUE(taken.get().ok());
  EXPECT_EQ(bytes().groups_beyond, 0);
  EndUses({0, 2});
}

TEST(WindowRoom, CountsWhatIsTakenAndTheMostOfIt) {
  WindowRoom room(100, 200);
  room.Take(90);
  room.NotePeak([] { return 90; });
  EXPECT_EQ(room.peaks().used_bytes, 90);
  EXPECT_LE(room.peaks().over_budget_bytes, 0);
  room.Take(30);
  room.NotePeak([] { return 100; });  // the others are about to leave
  EXPECT_LE(room.peaks().over_budget_bytes, 0);
  room.NotePeak([] { return 120; });
  EXPECT_EQ(room.peaks().over_budget_bytes, 20);
  EXPECT_EQ(room.peaks().over_budget_operation, "");
  room.NoteBeyond(7, "cat");
  EXPECT_EQ(room.peaks().over_budget_operation, "cat");
  room.NoteBeyond(6, "stack");  // less
  EXPECT_EQ(room.peaks().over_budget_operation, "cat");
  room.Give(120);
  EXPECT_EQ(room.used_bytes(), 0);
  EXPECT_EQ(room.peaks().used_bytes, 120);
  room.Resize(10, 20);
  room.Take(15);
  EXPECT_EQ(room.window_bytes(), 10);
  EXPECT_EQ(room.most_bytes(), 20);
}

}  // namespace
}  // namespace terrace
