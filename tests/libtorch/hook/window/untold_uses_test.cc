#include "libtorch/hook/window/untold_uses.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "libtorch/hook/window/window_pins.h"

namespace terrace {
namespace {

using Caller = FetchAsker::Caller;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMostBytes = 1 << 20;

TEST(UntoldUsesTest, EachLaneKeepsItsOrder) {
  UntoldUses uses;
  const auto add = [&](UseLane lane, int64_t id) {
    EXPECT_FALSE(uses.Add(lane, {id}, 1, kMostBytes));
  };
  add(UseLane::kOperations, 1);
  add(UseLane::kCopies, 5);
  add(UseLane::kOperations, 1);  // in a row, as its lane goes
  add(UseLane::kCopies, 1);
  add(UseLane::kOperations, 2);
  const UntoldUses::Uses taken = uses.Take();
  EXPECT_THAT(taken[0], ElementsAre(TensorId{1}, TensorId{2}));
  EXPECT_THAT(taken[1], ElementsAre(TensorId{5}, TensorId{1}));
  EXPECT_THAT(uses.Take(), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(UntoldUsesTest, ManyUsesOrBytesAreToBeTold) {
  UntoldUses uses;
  for (int64_t i = 1; i < 1024; ++i) {
    EXPECT_FALSE(uses.Add(UseLane::kCopies, {i}, 1, kMostBytes)) << i;
  }
  EXPECT_TRUE(uses.Add(UseLane::kCopies, {1024}, 1, kMostBytes));
  uses.Take();
  EXPECT_FALSE(uses.Add(UseLane::kOperations, {1}, kMostBytes / 2, kMostBytes));
  EXPECT_TRUE(uses.Add(UseLane::kOperations, {2}, kMostBytes / 2, kMostBytes));
  uses.Take();
  EXPECT_FALSE(uses.Add(UseLane::kCopies, {3}, 1, kMostBytes));
}

// Uses are told whole and in their order, however often they are taken.
TEST(UntoldUsesTest, OneThreadLosesNone) {
  UntoldUses uses;
  int64_t next = 0;
  for (int64_t count = 1; count < 100; ++count) {
    for (int64_t i = 0; i < count; ++i) {
      uses.Add(UseLane::kOperations, {next + i}, 1, kMostBytes);
    }
    const UntoldUses::Uses taken = uses.Take();
    ASSERT_EQ(taken[0].size(), static_cast<size_t>(count));
    for (const TensorId each : taken[0]) ASSERT_EQ(each.value, next++);
  }
}

// Threads add, each tells when it is time, and one takes now and then beside
// them. A use that is half told when a thread takes may come late or not at
// all, and each thread has one of these at a time; none is told twice.
TEST(UntoldUsesTest, ThreadsAddWhileOthersTake) {
  constexpr int64_t kThreads = 3;
  constexpr int64_t kUses = 20'000;
  constexpr int64_t kTakesBeside = 64;
  UntoldUses uses;
  std::vector<std::atomic<int>> told(kThreads * kUses);
  std::atomic<int64_t> takes = 0;
  const auto take = [&] {
    const UntoldUses::Uses taken = uses.Take();
    ++takes;
    for (const TensorId each : taken[0]) {
      told[static_cast<size_t>(each.value)]++;
    }
  };
  std::atomic<int64_t> added = 0;
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t i = 0; i < kUses; ++i) {
        const TensorId id{thread * kUses + i};
        if (uses.Add(UseLane::kOperations, id, 1, kMostBytes)) take();
        ++added;
      }
    });
  }
  for (int64_t i = 1; i <= kTakesBeside; ++i) {
    while (added < i * kThreads * kUses / kTakesBeside) {
      std::this_thread::yield();
    }
    take();
  }
  for (std::thread& each : threads) each.join();
  take();
  int64_t lost = 0;
  for (const std::atomic<int>& each : told) {
    EXPECT_LE(each, 1);
    if (each == 0) ++lost;
  }
  EXPECT_LE(lost, kThreads * takes);
  EXPECT_LE(takes, kThreads * kUses / 128);  // so that losses are few
}

// What the library copies goes its own way, whoever asks for it.
TEST(UntoldUsesTest, TheLibrarysCopiesAreALane) {
  EXPECT_EQ(FetchAsker::LaneOf(Caller::kOperation), UseLane::kOperations);
  EXPECT_EQ(FetchAsker::LaneOf(Caller::kLease), UseLane::kOperations);
  EXPECT_EQ(FetchAsker::LaneOf(Caller::kCopy), UseLane::kCopies);
  EXPECT_EQ(FetchAsker::LaneOf(Caller::kBeside), UseLane::kCopies);
}

}  // namespace
}  // namespace terrace
