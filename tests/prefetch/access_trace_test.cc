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

void Access(AccessTrace& trace, const Ids& ids) {
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
  Access(trace, ids);
  trace.BeginStep();
  return trace;
}

TEST(AccessTraceTest, TheFirstStepKnowsNothing) {
  AccessTrace trace;
  trace.BeginStep();
  Access(trace, {1, 2});
  EXPECT_FALSE(trace.has_replay());
  EXPECT_EQ(Upcoming(trace, 3), Ids{});
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
}

TEST(AccessTraceTest, ARepeatedStepIsForetold) {
  AccessTrace trace = Recorded({5, 6, 7, 8});
  EXPECT_TRUE(trace.has_replay());
  EXPECT_EQ(Upcoming(trace, 2), (Ids{5, 6}));
  Access(trace, {5, 6});
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

TEST(AccessTraceTest, EachUseIsExpectedOnceRoundTheEnd) {
  AccessTrace trace = Recorded({5, 6, 7});
  Access(trace, {5});
  EXPECT_EQ(trace.uses(), 1);
  EXPECT_EQ(trace.Expected(0), TensorId{6});
  EXPECT_EQ(trace.Expected(2), TensorId{5});
  EXPECT_EQ(trace.Expected(3), std::nullopt);
  EXPECT_EQ(AccessTrace().Expected(0), std::nullopt);
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
  Access(trace, {5, 6, 7});
  EXPECT_EQ(Upcoming(trace, 100), (Ids{9, 7}));
  Access(trace, {8, 9});
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
  Access(trace, {5, 6});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{7, 5}));
  EXPECT_EQ(Upcoming(trace, 100), (Ids{7, 5, 6}));
  EXPECT_EQ(Upcoming(trace, 0), Ids{});
}

TEST(AccessTraceTest, ATensorMayComeTwiceInAStep) {
  AccessTrace trace = Recorded({1, 2, 1, 3});
  EXPECT_EQ(trace.NextUse({1}), 0);
  Access(trace, {1});
  EXPECT_EQ(trace.NextUse({1}), 1);
  Access(trace, {2, 1});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{3, 1}));
  EXPECT_EQ(trace.NextUse({1}), 1);
}

TEST(AccessTraceTest, ASkipMovesThePosition) {
  AccessTrace trace = Recorded({1, 2, 3, 4, 5});
  Access(trace, {1, 4});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{5, 1}));
}

TEST(AccessTraceTest, AJumpBackGoesRoundTheEnd) {
  AccessTrace trace = Recorded({1, 2, 3, 4, 5});
  Access(trace, {4, 1});
  EXPECT_EQ(Upcoming(trace, 3), (Ids{2, 3, 4}));
}

TEST(AccessTraceTest, AnUnknownTensorLeavesThePosition) {
  AccessTrace trace = Recorded({1, 2, 3});
  Access(trace, {1, 99});
  EXPECT_EQ(Upcoming(trace, 1), Ids{2});
  EXPECT_EQ(trace.NextUse({99}), kUnknownUse);
}

TEST(AccessTraceTest, TheNextStepReplaysWhatThisOneDid) {
  AccessTrace trace = Recorded({1, 2, 3});
  Access(trace, {3, 99, 2, 1});  // reversed, with a stranger
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 10), (Ids{3, 99, 2, 1}));
}

TEST(AccessTraceTest, AnEmptyStepSaysNothing) {
  AccessTrace trace = Recorded({1, 2, 3});
  Access(trace, {1});
  trace.BeginStep();
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 10), (Ids{1}));
}

TEST(AccessTraceTest, TheEndOfTheStepIsFollowedByItsStart) {
  AccessTrace trace = Recorded({1, 2, 3});
  Access(trace, {1, 2, 3});
  EXPECT_EQ(Upcoming(trace, 2), (Ids{1, 2}));
  EXPECT_EQ(trace.NextUse({1}), 0);
}

TEST(AccessTraceTest, ForgetForgetsBoth) {
  AccessTrace trace = Recorded({1, 2, 3});
  Access(trace, {1, 2});
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

// As a model's operations are traced: repeats in a row are one use, a step
// that leaves its order is followed no farther than a few uses.
AccessTrace OfOperations() {
  return AccessTrace(
      {.joins_repeats = true, .most_passed = 64, .most_more_uses = 64 << 10});
}

TEST(AccessTraceOfOperations, TheNextStepIsAsTheLast) {
  AccessTrace trace = OfOperations();
  Access(trace, {1, 2, 2, 3, 2, 1});  // 1 2 3 2 1
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 9), (Ids{1, 2, 3, 2, 1}));
  EXPECT_EQ(trace.NextUse({3}), 2);
  Access(trace, {1});
  EXPECT_EQ(trace.NextUse({2}), 0);
  EXPECT_EQ(trace.NextUse({3}), 1);
  EXPECT_EQ(trace.NextUse({1}), 3);
  Access(trace, {2, 3, 2});
  EXPECT_EQ(trace.NextUse({1}), 0);
  EXPECT_EQ(trace.NextUse({3}), 3);            // in the step after this one
  EXPECT_EQ(Upcoming(trace, 2), (Ids{1, 1}));  // which begins so
  EXPECT_EQ(trace.NextUse({9}), kUnknownUse);
}

TEST(AccessTraceOfOperations, StepsThatDifferAreFollowed) {
  AccessTrace trace = OfOperations();
  Access(trace, {1, 2, 3, 4, 5});
  trace.BeginStep();
  Access(trace, {1, 7});  // 7 is new
  EXPECT_EQ(trace.NextUse({2}), 0);
  Access(trace, {4});  // 2 and 3 are left out
  EXPECT_EQ(trace.NextUse({5}), 0);
  EXPECT_EQ(trace.NextUse({2}), 2);
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 9), (Ids{1, 7, 4}));
}

TEST(AccessTraceOfOperations, AUseThatIsFarAheadIsNotFollowed) {
  AccessTrace trace = OfOperations();
  Ids order;
  for (int64_t id = 0; id < 100; ++id) order.push_back(id);
  Access(trace, order);
  trace.BeginStep();
  Access(trace, {65});
  EXPECT_EQ(trace.NextUse({0}), 0);
  Access(trace, {64});
  EXPECT_EQ(trace.NextUse({65}), 0);
  Access(trace, {0});  // nor is one of before
  EXPECT_EQ(trace.NextUse({65}), 0);
}

TEST(AccessTraceOfOperations, UsesWithoutAnEndAreNoStep) {
  AccessTrace trace = OfOperations();
  Access(trace, {1, 2});
  trace.BeginStep();
  for (int i = 0; i < (64 << 10) + 10; ++i) Access(trace, {i % 2, 5});
  EXPECT_FALSE(trace.has_replay());
  trace.BeginStep();
  EXPECT_FALSE(trace.has_replay());
  Access(trace, {1, 2});
  trace.BeginStep();
  EXPECT_EQ(Upcoming(trace, 9), (Ids{1, 2}));
}

// In bytes and in uses, against a search through the whole order.
TEST(AccessTraceOfOperations, NextUsesAreThoseOfASearch) {
  std::mt19937 random(11);
  Ids order;
  Ids sizes;
  for (int i = 0; i < 9; ++i) {
    sizes.push_back(static_cast<int64_t>(1 + random() % 5000));
  }
  for (int i = 0; i < 60; ++i) {
    auto next = static_cast<int64_t>(random() % 9);
    if (!order.empty() && order.back() == next) next = (next + 1) % 9;
    order.push_back(next);
  }
  for (const bool in_bytes : {false, true}) {
    AccessTrace trace(
        {.in_bytes = in_bytes, .joins_repeats = true, .most_passed = 64});
    const auto bytes_of = [&](int64_t id) {
      return in_bytes ? sizes[static_cast<size_t>(id)] : 1;
    };
    for (const int64_t id : order) trace.OnAccess({id}, false, bytes_of(id));
    trace.BeginStep();
    for (size_t at = 0; at < order.size(); ++at) {
      for (int64_t id = 0; id < 9; ++id) {
        int64_t expected = 0;
        for (size_t i = at; order[i % order.size()] != id; ++i) {
          expected += bytes_of(order[i % order.size()]);
        }
        EXPECT_EQ(trace.NextUse({id}), expected) << at << " " << id;
      }
      trace.OnAccess({order[at]}, false, bytes_of(order[at]));
    }
  }
}

}  // namespace
}  // namespace terrace
