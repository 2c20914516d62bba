#include "kernels/pool_executor.h"

#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cfenv>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/floating_point_mode.h"

namespace terrace {
namespace {

std::unique_ptr<Executor> Pool(int threads, std::vector<int> cpus = {}) {
  auto executor = MakePoolExecutor(threads, cpus);
  EXPECT_TRUE(executor.ok()) << executor.status();
  return executor.ok() ? *std::move(executor) : nullptr;
}

std::vector<int> AllowedProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(PoolExecutorTest, TheDestructorRunsWhatWasQueuedFromManyThreads) {
  constexpr int kProducers = 4;
  constexpr int kTasks = 2000;
  std::vector<std::atomic<int>> ran(kProducers * kTasks);
  {
    const auto pool = Pool(3);
    EXPECT_EQ(pool->parallelism(), 3);
    std::vector<std::thread> producers;
    for (int producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        for (int task = 0; task < kTasks; ++task) {
          auto& count = ran[static_cast<size_t>(producer * kTasks + task)];
          pool->Run([&count] { ++count; });
        }
      });
    }
    for (std::thread& producer : producers) producer.join();
  }
  for (const auto& count : ran) ASSERT_EQ(count, 1);
}

TEST(PoolExecutorTest, TasksThatTasksQueueRunBeforeTheDestructorReturns) {
  std::atomic<int> ran = 0;
  std::function<void(Executor&, int)> grow = [&](Executor& pool, int depth) {
    ++ran;
    for (int child = 0; child < 2 && depth > 0; ++child) {
      pool.Run([&grow, &pool, depth] { grow(pool, depth - 1); });
    }
  };
  {
    const auto pool = Pool(2);
    pool->Run([&grow, &pool = *pool] { grow(pool, 9); });
  }
  EXPECT_EQ(ran, 1023);
}

TEST(PoolExecutorTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    const auto pool = Pool(1);
    for (int i = 0; i < 1000; ++i) {
      pool->Run([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

// Each task waits until all have arrived: only possible on as many threads.
TEST(PoolExecutorTest, AsManyTasksRunAtOnceAsItSays) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  Mutex mutex;
  CondVar all_here;
  int here = 0;
  int met = 0;
  {
    const auto pool = Pool(4);
    for (int i = 0; i < 4; ++i) {
      pool->Run([&] {
        MutexLock lock(mutex);
        if (++here == 4) all_here.SignalAll();
        while (here < 4 && absl::Now() < deadline) {
          all_here.WaitFor(mutex, deadline - absl::Now());
        }
        if (here == 4) ++met;
      });
    }
  }
  EXPECT_EQ(met, 4);
}

TEST(PoolExecutorTest, ThreadsArePinnedToTheGivenProcessors) {
  const std::vector<int> allowed = AllowedProcessors();
  for (const int cpu : {allowed.front(), allowed.back()}) {
    std::set<int> seen;
    Mutex mutex;
    {
      const auto pool = Pool(2, {cpu});
      for (int i = 0; i < 100; ++i) {
        pool->Run([&] {
          cpu_set_t set;
          CPU_ZERO(&set);
          sched_getaffinity(0, sizeof(set), &set);
          MutexLock lock(mutex);
          seen.insert(sched_getcpu());
          EXPECT_EQ(CPU_COUNT(&set), 1);
          EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpu), &set));
        });
      }
    }
    EXPECT_EQ(seen, std::set<int>{cpu});
  }
}

TEST(PoolExecutorTest, SignalsStayOutOfItsThreadsAndTheCallersMaskStays) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::atomic<int> blocked = -1;
  {
    const auto pool = Pool(1);
    pool->Run([&] {
      sigset_t inside;
      pthread_sigmask(SIG_SETMASK, nullptr, &inside);
      blocked = sigismember(&inside, SIGINT);
    });
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(blocked, 1);
  EXPECT_EQ(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
}

TEST(PoolExecutorTest, TasksComputeInTheDefaultModeWhateverTheCreators) {
  constexpr float kMinimum = std::numeric_limits<float>::min();
  for (const FloatingPointMode mode :
       {FloatingPointMode::kFlushSubnormals, FloatingPointMode::kRoundUp,
        FloatingPointMode::kTrap}) {
    volatile float minimum = kMinimum;
    volatile float zero = 0;
    volatile float half_minimum = 0;
    volatile float infinity = 0;
    volatile float one = 1;
    volatile float rounded = 0;
    std::atomic<int> rounding = -1;
    {
      std::unique_ptr<Executor> pool;
      {
        const ForeignFloatingPoint foreign(mode);
        pool = Pool(1);
      }
      pool->Run([&] {
        rounding = std::fegetround();
        half_minimum = minimum * 0.5f;
        rounded = one + minimum;
        infinity = one / zero;  // a trap would end the process
      });
    }
    EXPECT_EQ(rounding, FE_TONEAREST) << FloatingPointModeName(mode);
    EXPECT_EQ(half_minimum, kMinimum * 0.5f) << FloatingPointModeName(mode);
    EXPECT_EQ(rounded, 1.0f) << FloatingPointModeName(mode);
    EXPECT_EQ(infinity, std::numeric_limits<float>::infinity());
  }
}

TEST(PoolExecutorTest, BadArgumentsAreNamed) {
  const auto none = MakePoolExecutor(0, {});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  for (const int cpu : {-1, CPU_SETSIZE, CPU_SETSIZE - 1}) {
    const auto pool = MakePoolExecutor(1, {cpu});
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(pool.status().message()),
                testing::HasSubstr(std::to_string(cpu)));
  }
}

}  // namespace
}  // namespace terrace
