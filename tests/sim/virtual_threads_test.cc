// Threads in virtual time: what sleeps at once takes the time of one, and a run
// repeats.
#include "tests/support/virtual_threads.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/medium/paced_medium.h"
#include "tests/support/medium/vector_medium.h"

namespace terrace {
namespace {

constexpr absl::Duration kTime = absl::Milliseconds(10);

class VirtualThreadsTest : public testing::Test {
 protected:
  // How long until all tasks have ended.
  absl::Duration Drain(const VirtualThreads& threads) {
    const absl::Time start = clock_.Now();
    EXPECT_TRUE(clock_.RunUntil([&] { return threads.waiting() == 0; }));
    return clock_.Now() - start;
  }

  VirtualClock clock_;
};

TEST_F(VirtualThreadsTest, WhatSleepsAtOnceTakesTheTimeOfOne) {
  for (const int count : {1, 2, 4}) {
    VirtualThreads threads(count, absl::ZeroDuration(), clock_);
    EXPECT_EQ(threads.parallelism(), count);
    for (int i = 0; i < 4; ++i) {
      threads.Run([&] { threads.SleepUntil(clock_.Now() + kTime); });
    }
    EXPECT_EQ(Drain(threads), 4 / count * kTime);
  }
}

TEST_F(VirtualThreadsTest, ATaskCostsItsTimeAndMayQueueOthers) {
  VirtualThreads threads(1, kTime, clock_);
  int ran = 0;
  threads.Run([&] {
    ++ran;
    threads.Run([&] { ++ran; });
  });
  EXPECT_EQ(Drain(threads), 2 * kTime);
  EXPECT_EQ(ran, 2);
}

TEST_F(VirtualThreadsTest, MotionGoesFirstOnHalfOfTheThreads) {
  VirtualThreads threads(2, kTime, clock_);
  std::string order;
  for (int i = 0; i < 3; ++i) {
    threads.Run([&] { order += "c"; });
    threads.Run([&] { order += "m"; }, Lane::kMotion);
  }
  EXPECT_EQ(Drain(threads), 3 * kTime);
  EXPECT_EQ(order, "mcmcmc");
}

TEST_F(VirtualThreadsTest, ARunRepeats) {
  const auto run = [&] {
    std::string log;
    VirtualThreads threads(3, absl::Microseconds(7), clock_);
    const absl::Time start = clock_.Now();
    for (int i = 0; i < 20; ++i) {
      threads.Run([&, i] {
        threads.SleepUntil(clock_.Now() + absl::Microseconds(i % 5));
        absl::StrAppend(&log, i, "@",
                        absl::ToInt64Nanoseconds(clock_.Now() - start), " ");
      });
    }
    Drain(threads);
    return log;
  };
  EXPECT_EQ(run(), run());
}

TEST_F(VirtualThreadsTest, APacedMediumServesOneAfterAnotherInEachDirection) {
  VirtualThreads threads(4, absl::ZeroDuration(), clock_);
  const auto plain = std::make_shared<VectorMedium>("node1", 8192);
  PacedMedium medium(plain, {4096 * 100, 4096 * 50}, clock_,
                     [&](absl::Time time) { threads.SleepUntil(time); });
  std::vector<std::byte> up(4096), down(4096, std::byte{7});
  for (int i = 0; i < 2; ++i) {
    threads.Run(
        [&] { EXPECT_TRUE(medium.Read(4096, absl::MakeSpan(up)).ok()); });
    threads.Run([&] { EXPECT_TRUE(medium.Write(0, down).ok()); });
  }
  EXPECT_EQ(Drain(threads), absl::Milliseconds(40));
  medium.Set({0, 4096 * 100});
  threads.Run([&] { EXPECT_TRUE(medium.Read(0, absl::MakeSpan(up)).ok()); });
  EXPECT_EQ(Drain(threads), absl::ZeroDuration());
  EXPECT_EQ(up, down);
  threads.Run([&] { EXPECT_TRUE(medium.Write(0, down).ok()); });
  EXPECT_EQ(Drain(threads), absl::Milliseconds(10));
}

}  // namespace
}  // namespace terrace
