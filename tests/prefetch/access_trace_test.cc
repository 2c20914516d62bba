#include "prefetch/access_trace.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "policies/eviction.h"

namespace terrace {
namespace {

using Ids = std::vector<int64_t>;

void AccessAll(AccessTrace& trace, const Ids& ids) {
  for (const int64_t id : ids) trace.OnAccess({id});
}

Ids Upcoming(const AccessTrace& trace, int64_t count) {
  std::vector<TensorId> tensors = {{-7}};  // must be replaced
  trace.Upcoming(count, &tensors);
  Ids ids;
  for (const TensorId tensor : tensors) ids.push_back(tensor.value);
  return ids;
}

AccessTrace Recorded(const Ids& ids) {
  AccessTrace trace;
  trace.BeginStep();
  AccessAll(trace, ids);
  trace.BeginStep();
  return trace;
}

TEST(AccessTraceTest, TheFirstStepKnowsNothing) {
  AccessTrace trace;
  trace.BeginStep();
  AccessAll(trace, {1, 2});
  EXPECT_FALSE(trace.has_replay());
  EXPECT_EQ(Upcoming(trace, 3), Ids{});
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
}

TEST(AccessTraceTest, ARepeatedStepIsForetold) {
  AccessTrace trace = Recorded({5, 6, 7, 8});
  EXPECT_TRUE(trace.has_replay());
  EXPECT_EQ(Upcoming(trace, 2), (Ids{5, 6}));
  AccessAll(trace, {5, 6});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{7, 8}));
  EXPECT_EQ(trace.NextUse({7}), 0);
  EXPECT_EQ(trace.NextUse({8}), 1);
  EXPECT_EQ(trace.NextUse({5}), 2);  // round the end
  EXPECT_EQ(trace.NextUse({6}), 3);
}

TEST(AccessTraceTest, WhatTheLastStepHadIsForeseen) {
  AccessTrace trace;
  trace.BeginStep();
  EXPECT_FALSE(trace.OnAccess({5}));
  EXPECT_FALSE(trace.OnAccess({5}));  // in this step only
  EXPECT_FALSE(trace.OnAccess({6}));
  trace.BeginStep();
  EXPECT_TRUE(trace.OnAccess({6}));  // in another order too
  EXPECT_TRUE(trace.OnAccess({5}));
  EXPECT_FALSE(trace.OnAccess({7}));
}

TEST(AccessTraceTest, WhatStayedIsNotUpcoming) {
  AccessTrace trace;
  trace.BeginStep();
  for (const int64_t id : {5, 6, 7, 8, 9}) {
    trace.OnAccess({id}, /*stays=*/id != 7 && id != 9);
  }
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 1), Ids{7});
  EXPECT_EQ(Upcoming(trace, 100), (Ids{7, 9}));
  EXPECT_EQ(trace.NextUse({8}), 3);
  AccessAll(trace, {5, 6, 7});
  EXPECT_EQ(Upcoming(trace, 100), (Ids{9, 7}));
  AccessAll(trace, {8, 9});
  EXPECT_EQ(Upcoming(trace, 1), Ids{7});
  trace.BeginStep();  // the one in which all came
  EXPECT_EQ(Upcoming(trace, 100), (Ids{5, 6, 7, 8, 9}));
}

TEST(AccessTraceTest, WhereAllStayedNothingIsUpcoming) {
  AccessTrace trace;
  trace.OnAccess({1}, /*stays=*/true);
  trace.BeginStep();
  EXPECT_TRUE(trace.has_replay());
  EXPECT_EQ(Upcoming(trace, 3), Ids{});
  EXPECT_EQ(trace.NextUse({1}), 0);
}

TEST(AccessTraceTest, UpcomingWrapsRoundOnce) {
  AccessTrace trace = Recorded({5, 6, 7});
  AccessAll(trace, {5, 6});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{7, 5}));
  EXPECT_EQ(Upcoming(trace, 100), (Ids{7, 5, 6}));
  EXPECT_EQ(Upcoming(trace, 0), Ids{});
}

TEST(AccessTraceTest, ATensorMayComeTwiceInAStep) {
  AccessTrace trace = Recorded({1, 2, 1, 3});
  EXPECT_EQ(trace.NextUse({1}), 0);
  AccessAll(trace, {1});
  EXPECT_EQ(trace.NextUse({1}), 1);
  AccessAll(trace, {2, 1});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{3, 1}));
  EXPECT_EQ(trace.NextUse({1}), 1);
}

TEST(AccessTraceTest, ASkipMovesThePosition) {
  AccessTrace trace = Recorded({1, 2, 3, 4, 5});
  AccessAll(trace, {1, 4});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{5, 1}));
}

TEST(AccessTraceTest, AJumpBackGoesRoundTheEnd) {
  AccessTrace trace = Recorded({1, 2, 3, 4, 5});
  AccessAll(trace, {4, 1});
  EXPECT_EQ(Upcoming(trace, 3), (Ids{2, 3, 4}));
}

TEST(AccessTraceTest, AnUnknownTensorLeavesThePosition) {
  AccessTrace trace = Recorded({1, 2, 3});
  AccessAll(trace, {1, 99});
  EXPECT_EQ(Upcoming(trace, 1), Ids{2});
  EXPECT_EQ(trace.NextUse({99}), kUnknownUse);
}

TEST(AccessTraceTest, TheNextStepReplaysWhatThisOneDid) {
  AccessTrace trace = Recorded({1, 2, 3});
  AccessAll(trace, {3, 99, 2, 1});  // reversed, with a stranger
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 10), (Ids{3, 99, 2, 1}));
}

TEST(AccessTraceTest, AnEmptyStepSaysNothing) {
  AccessTrace trace = Recorded({1, 2, 3});
  AccessAll(trace, {1});
  trace.BeginStep();
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 10), (Ids{1}));
}

TEST(AccessTraceTest, TheEndOfTheStepIsFollowedByItsStart) {
  AccessTrace trace = Recorded({1, 2, 3});
  AccessAll(trace, {1, 2, 3});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{1, 2}));
  EXPECT_EQ(trace.NextUse({1}), 0);
}

TEST(AccessTraceTest, ForgetForgetsBoth) {
  AccessTrace trace = Recorded({1, 2, 3});
  AccessAll(trace, {1, 2});
  trace.Forget();
  EXPECT_FALSE(trace.has_replay());
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
  trace.BeginStep();
  EXPECT_FALSE(trace.has_replay());
}

// The rule itself, by rotating a queue: an access brings the trace round to
// just behind its next occurrence.
TEST(AccessTraceTest, AgreesWithARotatedQueue) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    std::deque<int64_t> queue;
    Ids step;
    const size_t length = 1 + random() % 20;
    for (size_t i = 0; i < length; ++i) {
      step.push_back(static_cast<int64_t>(random() % 12));
      queue.push_back(step.back());
    }
    AccessTrace trace = Recorded(step);
    for (int i = 0; i < 60; ++i) {
      const auto id = static_cast<int64_t>(random() % 14);
      trace.OnAccess({id});
      if (std::find(queue.begin(), queue.end(), id) != queue.end()) {
        bool reached = false;
        while (!reached) {
          reached = queue.front() == id;
          queue.push_back(queue.front());
          queue.pop_front();
        }
      }
      ASSERT_EQ(Upcoming(trace, 1000), Ids(queue.begin(), queue.end()))
          << "seed " << seed << ", access " << i;
      for (int64_t other = 0; other < 14; ++other) {
        const auto found = std::find(queue.begin(), queue.end(), other);
        ASSERT_EQ(trace.NextUse({other}),
                  found == queue.end() ? kUnknownUse : found - queue.begin())
            << "seed " << seed << ", access " << i << ", tensor " << other;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
