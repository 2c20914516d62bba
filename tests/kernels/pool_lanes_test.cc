// Which lane the pool's threads serve, with threads that are held at gates.
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"

namespace terrace {
namespace {

// Holds the tasks that come to it until it opens.
class Gate {
 public:
  void Pass() {
    MutexLock lock(mutex_);
    ++came_;
    changed_.SignalAll();
    while (!open_) changed_.Wait(mutex_);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  // That many tasks came. False: they did not, in a minute.
  bool Await(int tasks) {
    MutexLock lock(mutex_);
    return SystemClock().Await(
        mutex_, changed_,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return came_ >= tasks; },
        SystemClock().Now() + absl::Minutes(1));
  }
  int came() {
    MutexLock lock(mutex_);
    return came_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int came_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<Executor> PoolOf(int threads) {
  auto executor = MakePoolExecutor(threads, {});
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

TEST(PoolLanesTest, OneThreadAlternatesAndMotionOvertakes) {
  std::string ran;  // the one thread's, then ours
  Gate start;
  {
    const auto pool = PoolOf(1);
    pool->Run([&] { start.Pass(); });
    EXPECT_TRUE(start.Await(1));
    for (const char name : std::string("abcd")) {
      pool->Run([&ran, name] { ran += name; });
    }
    for (const char name : std::string("12")) {
      pool->Run([&ran, name] { ran += name; }, Lane::kMotion);
    }
    start.Open();
  }
  EXPECT_EQ(ran, "1a2bcd");
}

TEST(PoolLanesTest, HalfOfTheThreadsAreOnMotionWhileComputationWaits) {
  std::atomic<int> counted = 0;
  std::atomic<bool> last_ran = false;
  Gate start, motion, computation;
  {
    const auto pool = PoolOf(4);
    for (int i = 0; i < 4; ++i) pool->Run([&] { start.Pass(); });
    EXPECT_TRUE(start.Await(4));
    for (int i = 0; i < 20; ++i) pool->Run([&] { ++counted; });
    for (int i = 0; i < 2; ++i) pool->Run([&] { computation.Pass(); });
    pool->Run([&] { last_ran = true; });
    for (int i = 0; i < 6; ++i) {
      pool->Run([&] { motion.Pass(); }, Lane::kMotion);
    }
    start.Open();
    // All threads are held: two by motion, two by computation, and more of
    // both waits.
    EXPECT_TRUE(motion.Await(2));
    EXPECT_TRUE(computation.Await(2));
    EXPECT_EQ(motion.came(), 2);
    EXPECT_EQ(counted, 20);
    EXPECT_FALSE(last_ran);
    computation.Open();
    // With no computation left, these threads are on motion too.
    EXPECT_TRUE(motion.Await(4));
    EXPECT_TRUE(last_ran);
    motion.Open();
  }
  EXPECT_EQ(motion.came(), 6);
}

TEST(PoolLanesTest, TheDestructorRunsWhatWasQueuedInBothLanes) {
  for (const int threads : {1, 3}) {
    std::atomic<int> computation = 0;
    std::atomic<int> motion = 0;
    {
      const auto pool = PoolOf(threads);
      for (int i = 0; i < 500; ++i) {
        pool->Run([&] { ++computation; });
        // Each queues one more, into the other lane.
        pool->Run(
            [&, &executor = *pool] {
              ++motion;
              executor.Run([&] { ++computation; });
            },
            Lane::kMotion);
      }
    }
    EXPECT_EQ(computation, 1000);
    EXPECT_EQ(motion, 500);
  }
}

}  // namespace
}  // namespace terrace
