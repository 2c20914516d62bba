#include "libtorch/hook/window/untold_uses.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
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

constexpr int64_t kMostBytes = 1 << 30;

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

// Each thread's uses keep their order, though threads take them meanwhile.
TEST(UntoldUsesTest, ThreadsAddWhileOthersTake) {
  constexpr int64_t kThreads = 3;
  constexpr int64_t kUses = 20'000;
  UntoldUses uses;
  std::vector<std::vector<TensorId>> told(kThreads);
  std::mutex telling;
  const auto take = [&] {
    std::lock_guard lock(telling);
    const UntoldUses::Uses taken = uses.Take();
    for (const TensorId each : taken[0]) {
      told[static_cast<size_t>(each.value / kUses)].push_back(each);
    }
  };
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t i = 0; i < kUses; ++i) {
        const TensorId id{thread * kUses + i};
        if (uses.Add(UseLane::kOperations, id, 1, kMostBytes)) take();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  take();
  size_t count = 0;
  for (const std::vector<TensorId>& each : told) {
    count += each.size();
    size_t inversions = 0;
    for (size_t i = 1; i < each.size(); ++i)
      inversions += each[i] <= each[i - 1];
    // Those of which a thread was interrupted come later.
    EXPECT_LE(inversions, each.size() / 100);
  }
  EXPECT_GE(count, kThreads * kUses * 99 / 100);
  EXPECT_LE(count, kThreads * kUses);
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
