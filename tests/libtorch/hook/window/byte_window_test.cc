#include "libtorch/hook/window/byte_window.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(ByteWindowTest, TensorsTakeWhatTheyAreLarge) {
  Make(24, /*spare_pages=*/12);
  Fill({1, 3, 5});  // and a page each: all twelve
  EXPECT_EQ(window().stats().used_bytes, 12 * kPage);
  EXPECT_EQ(window().stats().evictions, 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsHere(i));
}

// No page is to spare.
TEST_F(ByteWindowTest, AWindowOfJustTheTensorsHoldsThemAll) {
  Make(20);
  Fill({1, 5, 2, 3, 4});
  EXPECT_EQ(window().stats().evictions, 0);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < count(); ++i) {
      const absl::Status fetched = Take({i});
      ASSERT_TRUE(fetched.ok()) << fetched;
    }
    for (int i = 0; i < count(); ++i) {
      EXPECT_TRUE(HasPattern(tensor(i).bytes(), static_cast<uint8_t>(i)));
      EXPECT_FALSE(tensor(i).word().Unpin());
    }
    EXPECT_EQ(window().stats().used_bytes, 20 * kPage);
    EXPECT_EQ(window().EvictAll(), 5);
  }
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 0);
  // They had never left memory.
  EXPECT_EQ(world().runtime().GetStats().demand_reads, 0);
  EXPECT_EQ(written(), 0);
}

// Whatever comes takes the place of what left for it.
TEST_F(ByteWindowTest, TensorsOfASizeNeedNoMoreRoomThanTheyTake) {
  Make(12);
  Fill({2, 2, 2, 2, 2, 2, 2, 2});  // four have room
  const int64_t evictions = window().stats().evictions;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < count(); ++i) {
      const absl::Status read = Read(i);
      ASSERT_TRUE(read.ok()) << read;
    }
  }
  EXPECT_EQ(window().stats().evictions, evictions + 4 * 8);
  EXPECT_EQ(window().stats().used_bytes, 12 * kPage);
}

TEST_F(ByteWindowTest, WhatWasUsedLongestAgoLeavesFirst) {
  Make(24, /*spare_pages=*/16);
  Fill({1, 1, 1, 1});
  ASSERT_TRUE(Read(0).ok());
  ASSERT_TRUE(Read(2).ok());
  Fill({3});  // four pages: of the four others two go
  EXPECT_TRUE(IsHere(0));
  EXPECT_FALSE(IsHere(1));
  EXPECT_TRUE(IsHere(2));
  EXPECT_FALSE(IsHere(3));
  EXPECT_TRUE(IsHere(4));
  EXPECT_EQ(window().stats().used_bytes, 8 * kPage);
}

TEST_F(ByteWindowTest, BytesAreThoseOfPlainVectors) {
  Make(34, /*spare_pages=*/10);
  Fill({1, 2, 7, 3, 5, 1, 9, 2, 4});
  Add(1);
  Add(kPage + 1);
  std::vector<uint8_t> seeds;
  for (int i = 0; i < count(); ++i) seeds.push_back(static_cast<uint8_t>(i));
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const int i = static_cast<int>(random() % seeds.size());
    const auto at = static_cast<size_t>(i);
    if (random() % 3 == 0) {
      seeds[at] = static_cast<uint8_t>(random());
      ASSERT_TRUE(Write(i, seeds[at]).ok());
    } else {
      const absl::Status read = Read(i, seeds[at]);
      ASSERT_TRUE(read.ok()) << read;
    }
    // What was asked back may be the recall thread's to end.
    ASSERT_TRUE(world().WaitUntil(
        [&] { return window().stats().used_bytes <= 24 * kPage; }));
  }
  EXPECT_GT(window().stats().evictions, 100);
  EXPECT_LE(window().stats().peaks.used_bytes, (24 + 10) * kPage);
}

TEST_F(ByteWindowTest, WhatWasOnlyReadLeavesWithoutAWrite) {
  Make(8);
  Fill({3, 3, 3});  // two have room
  // All were written once.
  window().EvictAll();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Read(i).ok());
  }
  const int64_t before = written();
  const int64_t drops = window().stats().clean_drops;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Read(i).ok());
  }
  EXPECT_EQ(written(), before);
  EXPECT_EQ(window().stats().clean_drops, drops + 15);
}

TEST_F(ByteWindowTest, WhatIsPinnedStaysAndMayExceedTheWindow) {
  Make(12, /*spare_pages=*/8);  // a window of four
  Fill({1, 1});
  Fill({3});
  ASSERT_TRUE(Take({0, 1, 2}).ok());
  EXPECT_EQ(window().stats().used_bytes, 8 * kPage);
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 4 * kPage);
  EXPECT_EQ(window().EvictAll(), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(HasPattern(tensor(i).bytes(), static_cast<uint8_t>(i)));
  }
  // Each leaves with its use that is beyond the window.
  EndUses({0, 1, 2});
  EXPECT_EQ(window().stats().used_bytes, 4 * kPage);
}

TEST_F(ByteWindowTest, MoreThanItMayHaveBeyondTheBudgetIsToldAndNoFailure) {
  Make(8, 0, {.beyond_bytes = 0});
  Fill({3, 3, 3});
  ASSERT_TRUE(Take({1, 2}).ok());
  WindowTensor* const in_use[] = {&tensor(1), &tensor(2)};
  const absl::Status taken =
      Take({0}, {.caller = FetchAsker::Caller::kCopy, .in_use = in_use});
  EXPECT_TRUE(absl::IsResourceExhausted(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()),
              StartsWith("terrace: 'tensor 0' 12 KiB: what is in use"));
  EXPECT_TRUE(IsNoRoom(taken));
  EXPECT_EQ(tensor(0).refusal, "");
  EXPECT_EQ(window().stats().failures, 0);
  EXPECT_EQ(window().stats().peaks.over_budget_operation, "");
  EndUses({0, 1, 2});
  EXPECT_TRUE(Read(0).ok());
}

TEST_F(ByteWindowTest, AWriteWithoutAMarkIsFoundAndKept) {
  Make(8, 0, {.verify_clean = true});
  Fill({3, 3, 3});
  window().EvictAll();
  ASSERT_TRUE(Read(0).ok());
  ASSERT_TRUE(WithBytes(window(), tensor(0), /*writes=*/false,
                        [](absl::Span<std::byte> bytes) {
                          bytes[5000] ^= std::byte{1};
                        })
                  .ok());
  window().EvictAll();
  EXPECT_EQ(window().stats().unmarked_writes, 1);
  for (const int i : {1, 2, 1, 2}) ASSERT_TRUE(Read(i).ok());
  ASSERT_TRUE(WithBytes(window(), tensor(0), /*writes=*/false,
                        [](absl::Span<std::byte> bytes) {
                          bytes[5000] ^= std::byte{1};
                          EXPECT_TRUE(HasPattern(bytes, 0));
                        })
                  .ok());
  // From then on it is written back without a look: not found a second time.
  window().EvictAll();
  EXPECT_EQ(window().stats().unmarked_writes, 1);
  for (const int i : {1, 2, 1, 2}) ASSERT_TRUE(Read(i).ok());
  EXPECT_TRUE(Read(0).ok());
}

TEST_F(ByteWindowTest, AFailedReadIsToldToTheTensorUntilRetry) {
  Make(8);
  Fill({3, 3, 3, 3});
  window().EvictAll();
  for (const int i : {2, 3}) ASSERT_TRUE(Read(i).ok());  // 0 and 1 are below
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  const absl::Status read = Read(0);
  EXPECT_TRUE(absl::IsUnavailable(read)) << read;
  EXPECT_THAT(tensor(0).refusal, StartsWith("terrace: 'tensor 0' 12 KiB: "));
  EXPECT_THAT(tensor(0).refusal, HasSubstr("ENXIO"));
  EXPECT_EQ(window().stats().first_error, read);
  EXPECT_EQ(window().stats().failures, 1);
  world().faults().Clear();
  EXPECT_THAT(std::string(Read(0).message()), HasSubstr("it failed before"));
  window().Retry();
  EXPECT_TRUE(Read(0).ok());
  EXPECT_TRUE(Read(1).ok());
}

}  // namespace
}  // namespace terrace
