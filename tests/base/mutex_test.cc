#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace terrace {
namespace {

TEST(MutexTest, ExcludesOtherThreads) {
  constexpr int kThreads = 4, kRounds = 20'000;
  Mutex mutex;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        MutexLock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, int64_t{kThreads} * kRounds);
}

// Two threads hand a turn to and fro; a lost wake-up would hang the test.
TEST(CondVarTest, WaitLetsGoAndTakesBackTheMutex) {
  constexpr int kTurns = 2000;
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  const auto play = [&](int parity) {
    for (;;) {
      MutexLock lock(mutex);
      while (turn < kTurns && turn % 2 != parity) changed.Wait(mutex);
      if (turn >= kTurns) return;
      ++turn;
      changed.SignalAll();
    }
  };
  std::thread even(play, 0), odd(play, 1);
  even.join();
  odd.join();
  EXPECT_EQ(turn, kTurns);
}

TEST(CondVarTest, WaitForEndsByItself) {
  Mutex mutex;
  CondVar never;
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
  MutexLock lock(mutex);
  while (passed() < std::chrono::milliseconds(20)) {
    never.WaitFor(mutex, absl::Milliseconds(5));
  }
  EXPECT_GE(passed(), std::chrono::milliseconds(20));
}

TEST(CondVarTest, AnEndlessTimeoutIsWokenBySignal) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread other([&] {
    MutexLock lock(mutex);
    ready = true;
    changed.Signal();
  });
  {
    MutexLock lock(mutex);
    while (!ready) changed.WaitFor(mutex, absl::InfiniteDuration());
  }
  other.join();
  EXPECT_TRUE(ready);
}

}  // namespace
}  // namespace terrace
