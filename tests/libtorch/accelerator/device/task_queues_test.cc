#include "tests/support/accelerator/task_queues.h"

#include <atomic>
#include <random>

#include "gtest/gtest.h"

namespace terrace {
namespace {

void RunLife(const TaskQueues::Task& life) { life(); }

TEST(TaskQueues, AStreamRunsItsTasksInOrder) {
  TaskQueues queues(RunLife);
  queues.SetDelays(/*seed=*/1, /*longest=*/5);
  const AcceleratorStream stream = queues.Add();
  std::vector<int> done;
  for (int task = 0; task < 100; ++task) {
    queues.Submit(stream, [&done, task] { done.push_back(task); });
  }
  queues.Wait(queues.Last(stream));
  ASSERT_EQ(done.size(), 100u);
  for (int task = 0; task < 100; ++task) {
    EXPECT_EQ(done[static_cast<size_t>(task)], task);
  }
}

TEST(TaskQueues, ATaskIsLateUntilAsManyMoreAreGiven) {
  TaskQueues queues(RunLife);
  queues.SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  const AcceleratorStream late = queues.Add();
  std::atomic<bool> is_done = false;
  const int64_t number = queues.Submit(late, [&] { is_done = true; });
  EXPECT_FALSE(queues.IsOver({late, number}));
  EXPECT_FALSE(is_done);
  // Who asks again and again.
  while (!queues.IsOver({late, number})) {
  }
  EXPECT_TRUE(is_done);
}

TEST(TaskQueues, WhatWaitsForAnotherStreamComesAfterIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    TaskQueues queues(RunLife);
    queues.SetDelays(seed, /*longest=*/8);
    const AcceleratorStream first = queues.Add();
    const AcceleratorStream second = queues.Add();
    int value = 0;
    int64_t last = 0;
    for (int round = 0; round < 50; ++round) {
      queues.Submit(first, [&] { value = 2 * value + 1; });
      queues.SubmitWait(second, queues.Last(first));
      queues.Submit(second, [&] { value = 3 * value % 1000003; });
      last = queues.SubmitWait(first, queues.Last(second));
    }
    queues.Wait({first, last});
    int expected = 0;
    for (int round = 0; round < 50; ++round) {
      expected = 3 * (2 * expected + 1) % 1000003;
    }
    EXPECT_EQ(value, expected) << seed;
  }
}

TEST(TaskQueues, StopDropsWhatHasNotBegunAndEndsWaits) {
  TaskQueues queues(RunLife);
  queues.SetDelays(/*seed=*/1, /*longest=*/1 << 20);
  const AcceleratorStream stream = queues.Add();
  const auto held = std::make_shared<int>(0);
  std::atomic<bool> is_done = false;
  queues.Submit(stream, [&is_done, held] { is_done = true; });
  queues.Stop();
  EXPECT_FALSE(is_done);
  EXPECT_EQ(held.use_count(), 1);
  queues.Wait(queues.Last(stream));
  queues.Submit(stream, [&is_done] { is_done = true; });
  EXPECT_FALSE(is_done);
}

}  // namespace
}  // namespace terrace
