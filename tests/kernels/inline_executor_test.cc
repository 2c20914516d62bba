#include "tests/support/inline_executor.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

std::vector<int> Order(InlineExecutor& executor, int tasks) {
  std::vector<int> order;
  for (int i = 0; i < tasks; ++i) {
    executor.Run([&order, i] { order.push_back(i); });
  }
  EXPECT_TRUE(order.empty()) << "a task ran inside Run";
  EXPECT_EQ(executor.RunAll(), tasks);
  return order;
}

TEST(InlineExecutorTest, RunsInTheGivenOrder) {
  InlineExecutor executor(3);
  EXPECT_EQ(executor.parallelism(), 3);
  EXPECT_THAT(Order(executor, 4), testing::ElementsAre(0, 1, 2, 3));
}

TEST(InlineExecutorTest, ASeedGivesOneOrderAndAnotherSeedAnother) {
  InlineExecutor first(1, 1);
  InlineExecutor again(1, 1);
  InlineExecutor other(1, 2);
  std::vector<int> order = Order(first, 50);
  EXPECT_EQ(Order(again, 50), order);
  EXPECT_NE(Order(other, 50), order);
  std::sort(order.begin(), order.end());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(InlineExecutorTest, TasksQueuedByTasksRunToo) {
  InlineExecutor executor;
  int ran = 0;
  executor.Run([&] { executor.Run([&ran] { ++ran; }); });
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(executor.waiting(), 1u);
  EXPECT_EQ(executor.RunAll(), 1);
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(executor.RunOne());
}

TEST(InlineExecutorTest, LanesAreCountedApartAndRunInOneOrder) {
  InlineExecutor executor;
  std::vector<int> order;
  executor.Run([&] { order.push_back(0); });
  executor.Run([&] { order.push_back(1); }, Lane::kMotion);
  executor.Run([&] { order.push_back(2); });
  EXPECT_EQ(executor.waiting(Lane::kCompute), 2u);
  EXPECT_EQ(executor.waiting(Lane::kMotion), 1u);
  EXPECT_EQ(executor.RunAll(), 3);
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace terrace
