#include "libtorch/hook/window/use_trace.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

void Step(UseTrace& trace, const std::vector<int64_t>& uses) {
  trace.BeginStep();
  for (const int64_t each : uses) trace.Note(each);
}

TEST(UseTrace, NothingIsKnownBeforeAStep) {
  UseTrace trace;
  trace.Note(1);
  EXPECT_FALSE(trace.known());
  EXPECT_EQ(trace.NextUse(1), UseTrace::kUnknownUse);
  EXPECT_EQ(trace.At(0), -1);
}

TEST(UseTrace, TheNextStepIsAsTheLast) {
  UseTrace trace;
  Step(trace, {1, 2, 2, 3, 2, 1});  // 1 2 3 2 1
  trace.BeginStep();
  ASSERT_TRUE(trace.known());
  ASSERT_EQ(trace.size(), 5u);
  EXPECT_EQ(trace.At(0), 1);
  EXPECT_EQ(trace.NextUse(3), 2);
  trace.Note(1);
  EXPECT_EQ(trace.NextUse(2), 0);
  EXPECT_EQ(trace.NextUse(3), 1);
  EXPECT_EQ(trace.NextUse(1), 3);
  trace.Note(2);
  trace.Note(3);
  trace.Note(2);
  EXPECT_EQ(trace.NextUse(1), 0);
  EXPECT_EQ(trace.NextUse(3), 3);  // in the step after this one
  EXPECT_EQ(trace.At(1), 1);       // which begins so
  EXPECT_EQ(trace.NextUse(9), UseTrace::kUnknownUse);
}

TEST(UseTrace, StepsThatDifferAreFollowed) {
  UseTrace trace;
  Step(trace, {1, 2, 3, 4, 5});
  trace.BeginStep();
  trace.Note(1);
  trace.Note(7);  // new
  EXPECT_EQ(trace.NextUse(2), 0);
  trace.Note(4);  // 2 and 3 are left out
  EXPECT_EQ(trace.NextUse(5), 0);
  EXPECT_EQ(trace.NextUse(2), 2);
  trace.BeginStep();
  EXPECT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace.At(1), 7);
}

// Against a search through the whole order.
TEST(UseTrace, NextUsesAreThoseOfASearch) {
  std::mt19937 random(11);
  std::vector<int64_t> order;
  for (int i = 0; i < 60; ++i) {
    int64_t next = random() % 9;
    if (!order.empty() && order.back() == next) next = (next + 1) % 9;
    order.push_back(next);
  }
  UseTrace trace;
  Step(trace, order);
  trace.BeginStep();
  for (size_t at = 0; at < order.size(); ++at) {
    for (int64_t tensor = 0; tensor < 9; ++tensor) {
      int64_t expected = 0;
      while (order[(at + static_cast<size_t>(expected)) % order.size()] !=
             tensor) {
        ++expected;
      }
      EXPECT_EQ(trace.NextUse(tensor), expected) << at << " " << tensor;
    }
    EXPECT_EQ(trace.At(0), order[at]);
    trace.Note(order[at]);
  }
}

}  // namespace
}  // namespace terrace
