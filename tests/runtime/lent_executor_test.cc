#include "runtime/lent_executor.h"

#include <atomic>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/support/inline_executor.h"

namespace terrace {
namespace {

ThreadPool PoolOf(int threads) {
  return MakeThreadPool(*MakePoolExecutor(threads, {}));
}

TEST(LentExecutorTest, ItsEndWaitsForItsOwnTasksAlone) {
  const ThreadPool pool = PoolOf(2);
  std::atomic<bool> goes_on = false;
  std::atomic<bool> others_end = false;
  ExecutorOf(pool).Run([&] {
    while (!others_end) std::this_thread::yield();
  });
  std::atomic<int> ended = 0;
  auto lent = std::make_unique<LentExecutor>(pool);
  EXPECT_EQ(lent->parallelism(), 2);
  for (int i = 0; i < 10; ++i) {
    lent->Run([&] {
      while (!goes_on) std::this_thread::yield();
      ++ended;
    });
  }
  std::thread owner([&] { lent.reset(); });
  EXPECT_LT(ended, 10);
  goes_on = true;
  owner.join();
  EXPECT_EQ(ended, 10);
  others_end = true;
}

// Also what the task owns is gone.
TEST(LentExecutorTest, WhatATaskOwnsGoesBeforeItsEndIsHeardOf) {
  const ThreadPool pool = PoolOf(1);
  const auto owned = std::make_shared<int>(1);
  auto lent = std::make_unique<LentExecutor>(pool);
  lent->Run([owned] {});
  lent.reset();
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(LentExecutorTest, TheLastOnesEndRunsWhatIsLeftAndEndsThePool) {
  std::atomic<int> ended = 0;
  auto lent = std::make_unique<LentExecutor>(PoolOf(1));
  const std::weak_ptr<PoolThreads> threads = lent->pool().threads();
  for (int i = 0; i < 10; ++i) lent->Run([&] { ++ended; });
  lent.reset();
  EXPECT_EQ(ended, 10);
  EXPECT_TRUE(threads.expired());
}

TEST(LentExecutorTest, LanesArePassedOn) {
  const auto tasks = std::make_shared<InlineExecutor>();
  LentExecutor lent(MakeThreadPool(tasks));
  lent.Run([] {}, Lane::kMotion);
  lent.Run([] {});
  EXPECT_EQ(tasks->waiting(Lane::kMotion), 1u);
  EXPECT_EQ(tasks->waiting(Lane::kCompute), 1u);
  tasks->RunAll();
}

}  // namespace
}  // namespace terrace
