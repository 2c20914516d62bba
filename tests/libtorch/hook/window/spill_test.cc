// Tensors of one operation that take more than the Runtime has at a time.
#include "libtorch/hook/window/spill.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/window/window_room.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class SpillTest : public ByteWindowTest {
 protected:
  // As an operation that takes all of them.
  void FetchAllBeyond() {
    for (int i = 0; i < count(); ++i) {
      tensor(i).word().Pin();
      const absl::Status fetched = window().FetchBeyond(tensor(i), "cat");
      ASSERT_TRUE(fetched.ok()) << i << ": " << fetched;
    }
  }
  void EndUses() {
    for (int i = 0; i < count(); ++i) window().EndUse(tensor(i));
  }
};

TEST_F(SpillTest, MoreThanTheBudgetIsThereAtATime) {
  Make(8);  // four tensors of one page
  Fill(std::vector<int64_t>(10, 1));
  EvictClean();
  FetchAllBeyond();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(HasPattern(tensor(i).bytes(), static_cast<uint8_t>(i))) << i;
    EXPECT_TRUE(tensor(i).is_spilled());
  }
  EXPECT_EQ(window().stats().used_bytes, 0);
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 10 * kPage);
  EXPECT_EQ(window().stats().peaks.over_budget_operation, "cat");
  EXPECT_LE(world().runtime().GetStats().host.peak_bytes, 8 * kPage);
  const int64_t before = written();
  EndUses();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(IsHere(i));
    EXPECT_FALSE(tensor(i).is_spilled());
  }
  EXPECT_EQ(written(), before);  // none was written to
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Read(i).ok());
}

TEST_F(SpillTest, WhatTheOperationWroteIsWrittenBack) {
  Make(8);
  Fill(std::vector<int64_t>(10, 1));
  EvictClean();
  FetchAllBeyond();
  for (int i = 0; i < 10; i += 2) {
    tensor(i).MarkWritten();
    WritePattern(tensor(i).bytes(), static_cast<uint8_t>(100 + i));
  }
  EndUses();
  window().EvictAll();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Read(i, static_cast<uint8_t>(i % 2 == 0 ? 100 + i : i)).ok());
  }
}

TEST_F(SpillTest, WhatWasWrittenBeforeIsNotLost) {
  Make(8);
  Fill(std::vector<int64_t>(4, 1));
  ASSERT_TRUE(Write(2, 77).ok());
  tensor(2).word().Pin();
  ASSERT_TRUE(window().FetchBeyond(tensor(2), "cat").ok());
  EXPECT_TRUE(HasPattern(tensor(2).bytes(), 77));
  window().EndUse(tensor(2));
  EXPECT_TRUE(Read(2, 77).ok());
}

TEST_F(SpillTest, WhatAnotherOperationHasStaysUntilItsEndToo) {
  Make(8);
  Fill({1, 1});
  tensor(0).word().Pin();
  tensor(0).word().Pin();
  ASSERT_TRUE(window().FetchBeyond(tensor(0), "cat").ok());
  EXPECT_FALSE(tensor(0).is_spilled());  // it is another's as well
  window().EndUse(tensor(0));
  ASSERT_TRUE(window().FetchBeyond(tensor(0), "cat").ok());
  ASSERT_TRUE(tensor(0).is_spilled());
  const std::byte* const data = tensor(0).data;
  tensor(0).word().Pin();  // another begins
  window().EndUse(tensor(0));
  EXPECT_EQ(tensor(0).data, data);
  EXPECT_EQ(window().EvictAll(), 1);  // the other tensor
  window().EndUse(tensor(0));
  EXPECT_FALSE(IsHere(0));
  EXPECT_TRUE(Read(0).ok());
}

TEST_F(SpillTest, OneThatEndsBeyondTheWindowIsForgottenWithItsMemory) {
  Make(8);
  Fill({1, 1});
  tensor(0).word().Pin();
  ASSERT_TRUE(window().FetchBeyond(tensor(0), "cat").ok());
  EXPECT_FALSE(tensor(0).word().Leave());
  tensor(0).word().Unpin();
  Remove(tensor(0));
  EXPECT_FALSE(tensor(0).is_spilled());
}

TEST_F(SpillTest, OneThatMovesOutTakesItsBytesAlong) {
  Make(8);
  Fill({1, 1});
  tensor(0).word().Pin();
  ASSERT_TRUE(window().FetchBeyond(tensor(0), "cat").ok());
  tensor(0).word().Unpin();
  ASSERT_TRUE(MoveOut(0).ok());
  EXPECT_FALSE(tensor(0).is_spilled());
  EXPECT_TRUE(HasPattern(tensor(0).bytes(), 0));
}

TEST_F(SpillTest, WhereThereIsNoMemoryItIsToldWhy) {
  Make(8);
  Fill(std::vector<int64_t>(10, 1));
  EvictClean();
  tensor(0).word().Pin();
  window().RefuseFetch(tensor(0), absl::ResourceExhaustedError("too much"));
  window().EndUse(tensor(0));
  EXPECT_EQ(tensor(0).word().state(), Residency::kCold);
  EXPECT_THAT(tensor(0).refusal, HasSubstr("'tensor 0' 4 KiB: too much"));
  EXPECT_EQ(window().stats().failures, 1);
  EXPECT_EQ(window().stats().used_bytes, 0);
  EXPECT_TRUE(Read(0).ok()) << "the next use tries it again";
  // One that is here is not refused.
  tensor(1).word().Pin();
  ASSERT_TRUE(window().Fetch(tensor(1)).ok());
  window().RefuseFetch(tensor(1), absl::ResourceExhaustedError("too much"));
  EXPECT_TRUE(HasPattern(tensor(1).bytes(), 1));
  window().EndUse(tensor(1));
}

TEST(WindowRoom, CountsWhatIsTakenAndTheMostOfIt) {
  WindowRoom room(100, 200, 300);
  EXPECT_EQ(room.beyond_bytes(), 300);
  room.Take(90);
  room.NotePeak([] { return 90; });
  EXPECT_FALSE(room.over());
  EXPECT_EQ(room.peaks().used_bytes, 90);
  EXPECT_LE(room.peaks().over_budget_bytes, 0);
  room.Take(30);
  room.NotePeak([] { return 100; });  // the others are about to leave
  EXPECT_TRUE(room.over());
  EXPECT_LE(room.peaks().over_budget_bytes, 0);
  room.NotePeak([] { return 120; });
  EXPECT_EQ(room.peaks().over_budget_bytes, 20);
  EXPECT_EQ(room.peaks().over_budget_operation, "");
  room.NoteBeyond(7, "cat");
  EXPECT_EQ(room.peaks().over_budget_bytes, 27);
  EXPECT_EQ(room.peaks().over_budget_operation, "cat");
  room.NoteBeyond(6, "stack");  // less
  EXPECT_EQ(room.peaks().over_budget_operation, "cat");
  room.Give(120);
  EXPECT_EQ(room.used_bytes(), 0);
  EXPECT_EQ(room.peaks().used_bytes, 120);
  room.Resize(10, 20);
  room.Take(15);
  EXPECT_TRUE(room.over());
  EXPECT_EQ(room.window_bytes(), 10);
  EXPECT_EQ(room.most_bytes(), 20);
}

}  // namespace
}  // namespace terrace
