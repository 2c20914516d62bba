// Fetches ahead of need, the end of tensors, and many threads.
#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST_F(ByteWindowTest, AFetchAheadIsTakenByTheNextUse) {
  Make(8);
  Fill({3, 3, 3});
  EvictClean();
  const ByteWindowStats before = window().stats();
  for (int i = 0; i < 2; ++i) FetchAhead(0);  // the second is begun already
  EXPECT_FALSE(IsHere(0));
  EXPECT_EQ(window().stats().used_bytes, 0);
  AwaitReadsAhead(1);
  ASSERT_TRUE(Read(0).ok());
  const ByteWindowStats stats = window().stats();
  EXPECT_EQ(stats.fetches_ahead, 1);
  EXPECT_EQ(stats.fetches, before.fetches);
  EXPECT_EQ(stats.used_bytes, 4 * kPage);
  EXPECT_EQ(world().runtime().GetStats().prefetch_reads, 1);
}

TEST_F(ByteWindowTest, FetchesAheadDoNotPushEachOtherOut) {
  Make(8);
  Fill({3, 3, 3, 3, 3});
  EvictClean();  // the last two are in memory
  for (int i = 0; i < 3; ++i) FetchAhead(i);
  AwaitReadsAhead(2);
  const ByteWindowStats before = window().stats();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Read(i).ok());
  const ByteWindowStats after = window().stats();
  EXPECT_EQ(after.fetches_ahead, 2);
  EXPECT_EQ(after.fetches, before.fetches + 1);
}

TEST_F(ByteWindowTest, AFetchAheadThatFailsIsToldAtItsUse) {
  Make(8);
  Fill({3, 3, 3, 3});
  window().EvictAll();
  EvictClean();
  for (const int i : {2, 3}) ASSERT_TRUE(Read(i).ok());
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  FetchAhead(0);
  const absl::Status read = Read(0);
  EXPECT_THAT(std::string(read.message()), HasSubstr("ENXIO"));
  EXPECT_EQ(tensor(0).refusal, read.message());
}

TEST_F(ByteWindowTest, AFetchAheadThatFailedIsMadeAgainByItsUse) {
  Make(8);
  Fill({3, 3, 3, 3});
  window().EvictAll();
  EvictClean();
  world().faults().FailCall(1, {.kind = FaultKind::kError, .error = ENXIO},
                            CallFilter::kReads);
  FetchAhead(0);
  EXPECT_TRUE(Read(0).ok());
  EXPECT_EQ(world().faults().faults(), 1);
  EXPECT_EQ(window().stats().failures, 0);
}

// Forward and back over ten tensors, of which four have room.
TEST_F(ByteWindowTest, StepsThatRepeatAreFetchedAheadOfNeed) {
  Make(16);
  Fill({3, 3, 3, 3, 3, 3, 3, 3, 3, 3});
  const auto step = [&] {
    window().BeginStep();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(Read(i < 10 ? i : 19 - i).ok());
      world().runtime().GetStats();  // by when the next one is begun
    }
  };
  step();
  EXPECT_EQ(window().stats().fetches_ahead, 0);
  step();
  const Stats before = world().runtime().GetStats();
  const int64_t ahead = window().stats().fetches_ahead;
  step();
  const Stats after = world().runtime().GetStats();
  EXPECT_GT(window().stats().fetches_ahead - ahead, 5);
  // No policy reads less than once for each tensor that has no room and for
  // each direction.
  const int64_t read = after.prefetch_reads + after.demand_reads -
                       before.prefetch_reads - before.demand_reads;
  EXPECT_GE(read, 2 * (10 - 4));
  EXPECT_LE(read, 16);
}

TEST_F(ByteWindowTest, MovedOutTensorsHaveTheirBytesAndNoName) {
  Make(8);
  Fill({3, 3, 3});
  ASSERT_TRUE(Write(1, 9).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(MoveOut(i).ok());
    EXPECT_EQ(tensor(i).data, tensor(i).memory.data());
    EXPECT_TRUE(HasPattern(tensor(i).bytes(), i == 1 ? 9 : i));
  }
  EXPECT_EQ(window().stats().used_bytes, 0);
  world().Register("tensor 0", 4096);
  EXPECT_EQ(window().EvictAll(), 0);
}

TEST_F(ByteWindowTest, WhatIsInUseDoesNotLeave) {
  Make(8);
  Fill({3});
  tensor(0).word().Pin();
  EXPECT_FALSE(tensor(0).word().Leave());
  EXPECT_FALSE(tensor(0).word().Unpin());
  EXPECT_TRUE(Read(0).ok());
  Remove(tensor(0));
  EXPECT_EQ(tensor(0).word().Pin(), std::nullopt);
}

TEST_F(ByteWindowTest, WhatMemoryHasNoRoomForIsNotMovedOut) {
  int64_t available = 0;
  Make(8, 0, {.available_bytes = [&] { return available; }});
  Fill({3});
  const int64_t enough = OrdinaryMemory::kSpareBytes + 3 * 4096;
  for (const int64_t each : {int64_t{0}, enough - 1}) {
    available = each;
    const absl::Status moved = MoveOut(0);
    EXPECT_TRUE(absl::IsResourceExhausted(moved)) << moved;
    EXPECT_THAT(std::string(moved.message()),
                HasSubstr("'tensor 0' 12 KiB: no memory to bring it to"));
  }
  EXPECT_TRUE(window().stats().first_error.ok());
  EXPECT_TRUE(Read(0).ok());
  available = enough;
  ASSERT_TRUE(MoveOut(0).ok());
  EXPECT_TRUE(HasPattern(tensor(0).bytes(), 0));
}

TEST_F(ByteWindowTest, WhatCannotBeReadToBeMovedOutMayBeTriedAgain) {
  Make(8);
  Fill({3, 3, 3, 3});  // the first ones are below
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENXIO},
                           CallFilter::kReads);
  EXPECT_TRUE(absl::IsUnavailable(MoveOut(0)));
  world().faults().Clear();
  const absl::Status moved = MoveOut(0);
  ASSERT_TRUE(moved.ok()) << moved;
  EXPECT_TRUE(HasPattern(tensor(0).bytes(), 0));
  EXPECT_EQ(tensor(0).refusal, "");
}

// Nothing is left then whose fetch or write would find out that the disk takes
// writes again.
TEST_F(ByteWindowTest, AfterAWriteThatFailedOthersMayBeAdded) {
  Make(8);
  Fill({3, 3});
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                           CallFilter::kWrites);
  FakeTensor third("third", 3 * kPage);
  ASSERT_TRUE(window().Add({&third}).ok());
  const std::vector<std::byte> source(static_cast<size_t>(3 * kPage));
  EXPECT_TRUE(absl::IsResourceExhausted(window().Fill(third, source.data())));
  ASSERT_TRUE(world().runtime().GetStats().paths()[0].degraded);
  for (FakeTensor* const each : {&tensor(0), &tensor(1), &third}) {
    Remove(*each);
  }
  world().faults().Clear();
  Fill({3, 3, 3});
  for (int i = 2; i < 5; ++i) EXPECT_TRUE(Read(i).ok());
  EXPECT_FALSE(world().runtime().GetStats().paths()[0].degraded);
}

TEST_F(ByteWindowTest, RefusedTensorsSayWhy) {
  Make(8);
  Fill({3, 3, 3});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(tensor(i).word().Leave());
    window().Refuse(tensor(i), "the hook is closed");
    EXPECT_FALSE(IsHere(i));
    EXPECT_THAT(tensor(i).refusal, StartsWith("terrace: 'tensor "));
    EXPECT_THAT(tensor(i).refusal, HasSubstr("12 KiB: the hook is closed"));
  }
  EXPECT_EQ(window().stats().used_bytes, 0);
}

TEST_F(ByteWindowTest, ATensorWithoutAStorageGivesItsRoomUpAndIsLeftAlone) {
  Make(8);
  Fill({3, 3});
  tensor(0).has_storage = false;
  EXPECT_EQ(window().EvictAll(), 2);
  EXPECT_EQ(window().stats().used_bytes, 0);
  EXPECT_EQ(window().EvictAll(), 0);
  Remove(tensor(0));
  EXPECT_EQ(window().stats().used_bytes, 0);
  EXPECT_TRUE(Read(1).ok());
}

TEST_F(ByteWindowTest, RemovedTensorsGiveBackTheirRoomBelow) {
  Make(8);
  for (int round = 0; round < 4; ++round) {
    const int first = count();
    Fill({3, 3, 3, 3});
    for (int i = first; i < count(); ++i) {
      Remove(tensor(i));
    }
  }
  EXPECT_EQ(window().stats().used_bytes, 0);
  EXPECT_EQ(world().runtime().GetStats().paths()[0].tensors, 0);
}

// Two threads write tensors of their own and read common ones, while a third
// evicts and begins fetches, until it has had its turn often enough.
TEST_F(ByteWindowTest, ThreadsUseTensorsWhileAnotherEvicts) {
  Make(30, /*spare_pages=*/10);
  Fill({1, 2, 3, 4, 1, 2, 3, 4});
  constexpr int kShared = 4;
  std::atomic<int> users = 2;
  std::vector<std::thread> threads;
  const auto is_at_end = [&](int use) {
    if (use < 300) return false;
    return use >= 100'000 || window().stats().evictions > 100;
  };
  for (int user = 0; user < 2; ++user) {
    threads.emplace_back([&, user] {
      std::mt19937 random(static_cast<uint32_t>(user));
      std::vector<uint8_t> seeds = {4, 5, 6, 7};
      for (int i = 0; !is_at_end(i); ++i) {
        const int own = static_cast<int>(random() % 2) * 2 + user;
        const auto at = static_cast<size_t>(own);
        ASSERT_TRUE(Read(static_cast<int>(random() % kShared)).ok());
        ASSERT_TRUE(Read(kShared + own, seeds[at]).ok());
        seeds[at] = static_cast<uint8_t>(random());
        ASSERT_TRUE(Write(kShared + own, seeds[at]).ok());
      }
      --users;
    });
  }
  threads.emplace_back([&] {
    std::mt19937 random(99);
    while (users > 0) {
      window().EvictAll();
      FetchAhead(static_cast<int>(random() % 8));
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(window().stats().evictions, 100);
  EXPECT_EQ(window().stats().failures, 0);
}

}  // namespace
}  // namespace terrace
