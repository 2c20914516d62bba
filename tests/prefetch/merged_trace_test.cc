#include "prefetch/merged_trace.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "policies/eviction.h"

namespace terrace {
namespace {

using Ids = std::vector<int64_t>;

constexpr int64_t kLane = 3;
constexpr int64_t kOther = 4;

// Each use takes one byte, so that next uses are counted in uses. All are in
// one lane.
void Use(MergedTrace& trace, const Ids& ids) {
  for (const int64_t id : ids) trace.OnUse(kLane, {id}, 1);
}

Ids FromTo(int64_t first, int64_t end) {
  Ids ids;
  for (int64_t id = first; id < end; ++id) ids.push_back(id);
  return ids;
}

MergedTrace Replaying(const Ids& ids) {
  MergedTrace trace;
  trace.BeginStep();
  Use(trace, ids);
  trace.BeginStep();
  return trace;
}

// Those that the trace expects, as far as `count` uses from now.
Ids Expected(const MergedTrace& trace, int64_t count) {
  Ids ids;
  const auto lane = trace.lanes().find(kLane);
  for (int64_t i = 0; i < count && lane != trace.lanes().end(); ++i) {
    const auto use = trace.Expected(lane->second, i);
    if (!use.has_value()) break;
    ids.push_back(use->tensor.value);
  }
  return ids;
}

TEST(MergedTraceTest, TheFirstStepKnowsNothing) {
  MergedTrace trace;
  trace.BeginStep();
  EXPECT_FALSE(trace.OnUse(kLane, {1}, 1));
  EXPECT_FALSE(trace.OnUse(kLane, {1}, 1));
  EXPECT_EQ(Expected(trace, 9), Ids());
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
}

TEST(MergedTraceTest, TheNextStepIsAsTheLast) {
  MergedTrace trace = Replaying({1, 2, 2, 3, 2, 1});  // 1 2 3 2 1
  EXPECT_EQ(Expected(trace, 9), (Ids{1, 2, 3, 2, 1}));
  EXPECT_EQ(trace.NextUse({3}), 2);
  EXPECT_TRUE(trace.OnUse(kLane, {1}, 1));
  EXPECT_EQ(trace.NextUse({2}), 0);
  EXPECT_EQ(trace.NextUse({3}), 1);
  EXPECT_EQ(trace.NextUse({1}), 3);
  Use(trace, {2, 3, 2});
  EXPECT_EQ(trace.NextUse({1}), 0);
  EXPECT_EQ(trace.NextUse({3}), 3);            // in the step after this one
  EXPECT_EQ(Expected(trace, 2), (Ids{1, 1}));  // which begins so
  EXPECT_EQ(trace.NextUse({9}), kUnknownUse);
  EXPECT_FALSE(trace.OnUse(kLane, {9}, 1));
}

TEST(MergedTraceTest, AStepWithoutUsesSaysNothing) {
  MergedTrace trace = Replaying({1, 2, 3});
  trace.BeginStep();
  EXPECT_EQ(Expected(trace, 9), (Ids{1, 2, 3}));
}

TEST(MergedTraceTest, WhatIsPassedOverIsLate) {
  MergedTrace trace = Replaying({1, 2, 3, 4, 5});
  Use(trace, {1, 7, 4});  // 7 is new, 2 and 3 are late
  EXPECT_EQ(trace.NextUse({5}), 0);
  EXPECT_EQ(trace.NextUse({3}), 2);
  EXPECT_EQ(trace.NextUse({2}), 3);  // for longer, so that it is expected later
  EXPECT_EQ(trace.NextUse({4}), 4);
  Use(trace, {2});
  EXPECT_EQ(trace.NextUse({5}), 0);  // the step is where it was
  EXPECT_EQ(trace.NextUse({2}), 2);
  trace.BeginStep();
  EXPECT_EQ(Expected(trace, 9), (Ids{1, 7, 4, 2}));
}

TEST(MergedTraceTest, WhatComesEarlyIsOver) {
  MergedTrace trace = Replaying({1, 2, 3, 2});
  Use(trace, {2});
  EXPECT_EQ(trace.NextUse({2}), 1);
  Use(trace, {1});
  EXPECT_EQ(Expected(trace, 2), (Ids{3, 2}));
  Use(trace, {2});  // the second one, before its turn
  EXPECT_EQ(trace.NextUse({3}), 2);
  EXPECT_EQ(trace.NextUse({2}), 1);
}

TEST(MergedTraceTest, WhatIsLateForLongIsExpectedNoMore) {
  MergedTrace trace = Replaying(FromTo(0, 200));
  Use(trace, FromTo(1, 64));
  EXPECT_EQ(trace.NextUse({0}), 64);
  Use(trace, {64});
  EXPECT_EQ(trace.NextUse({0}), 135);  // in the next step
}

TEST(MergedTraceTest, AUseThatIsFarAheadIsNotFollowed) {
  MergedTrace trace = Replaying(FromTo(0, 100));
  Use(trace, {65});
  EXPECT_EQ(trace.NextUse({0}), 0);
  Use(trace, {64});
  EXPECT_EQ(trace.NextUse({65}), 0);
  Use(trace, {0});  // nor is one of long before
  EXPECT_EQ(trace.NextUse({65}), 0);
}

TEST(MergedTraceTest, AStepThatGoesOnElsewhereIsFollowedThere) {
  MergedTrace trace = Replaying(FromTo(0, 1000));
  Use(trace, FromTo(0, 10));
  const uint64_t order = trace.order();
  Use(trace, FromTo(500, 515));
  EXPECT_EQ(trace.NextUse({515}), 505);
  EXPECT_EQ(trace.order(), order);
  Use(trace, {515});
  EXPECT_EQ(trace.NextUse({516}), 0);
  EXPECT_NE(trace.order(), order);
  EXPECT_EQ(trace.NextUse({12}), 496);  // in the next step
}

// As an evaluation in the midst of a step: forward comes once more.
TEST(MergedTraceTest, WhatComesOnceMoreIsFollowed) {
  MergedTrace trace = Replaying(FromTo(0, 1000));
  Use(trace, FromTo(0, 300));
  Use(trace, FromTo(0, 100));
  EXPECT_EQ(trace.NextUse({100}), 0);
  EXPECT_EQ(trace.NextUse({150}), 50);
}

// Updates that ran before forward in one step run beside it in the next: what
// each of them uses is expected soon by its own pace.
TEST(MergedTraceTest, LanesThatChangeTheirPaceAreFollowedEach) {
  constexpr int64_t kCount = 400;
  MergedTrace trace;
  for (const int64_t id : FromTo(0, kCount)) trace.OnUse(kOther, {id}, 1);
  for (const int64_t id : FromTo(0, kCount)) trace.OnUse(kLane, {id}, 1);
  trace.BeginStep();
  EXPECT_EQ(trace.NextUse({9}), 9);
  const uint64_t order = trace.order();
  for (int64_t i = 0; i < kCount - 20; ++i) {
    trace.OnUse(kOther, {i}, 1);
    trace.OnUse(kLane, {i}, 1);
    ASSERT_EQ(trace.NextUse({i + 5}), 4) << i;
    // Where neither of them is expected to use it before the next step.
    ASSERT_GT(trace.NextUse({i}), kCount / 2) << i;
  }
  EXPECT_LE(trace.order() - order, 16u);  // as their pace is another one
  // And in the step after it they go together, as they did.
  trace.BeginStep();
  for (int64_t i = 0; i < kCount - 30; ++i) {
    trace.OnUse(kOther, {i}, 1);
    trace.OnUse(kLane, {i}, 1);
    ASSERT_EQ(trace.NextUse({i + 5}), 8) << i;
  }
}

// Those that ran beside each other run one after the other: who waits is
// expected later by what the other one uses.
TEST(MergedTraceTest, ALaneThatWaitsIsExpectedLater) {
  constexpr int64_t kCount = 400;
  MergedTrace trace;
  for (const int64_t id : FromTo(0, kCount)) {
    trace.OnUse(kOther, {id}, 1);
    trace.OnUse(kLane, {1000 + id}, 1);
  }
  trace.BeginStep();
  for (int64_t i = 0; i < kCount - 20; ++i) {
    trace.OnUse(kOther, {i}, 1);
    ASSERT_EQ(trace.NextUse({i + 5}), 9) << i;
    ASSERT_GE(trace.NextUse({1000}), i) << i;
  }
  trace.OnUse(kLane, {1000}, 1);  // it goes on
  EXPECT_EQ(trace.NextUse({1001}), 0);
  EXPECT_EQ(trace.NextUse({1006}), 10);
}

// As the steps of an optimizer after backward.
TEST(MergedTraceTest, ALaneWhoseTurnIsToComeIsExpectedThen) {
  MergedTrace trace;
  for (const int64_t id : FromTo(0, 100)) trace.OnUse(kLane, {id}, 1);
  for (const int64_t id : FromTo(500, 600)) trace.OnUse(kOther, {id}, 1);
  trace.BeginStep();
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(trace.NextUse({500}), 100 - i);
    trace.OnUse(kLane, {i}, 1);
  }
  EXPECT_EQ(trace.NextUse({500}), 0);
  EXPECT_EQ(trace.NextUse({0}), 100);
  trace.OnUse(kOther, {500}, 1);
  EXPECT_EQ(trace.NextUse({501}), 0);
  EXPECT_EQ(trace.NextUse({0}), 99);
  trace.DropLanes(kOther, kOther + 1);
  EXPECT_EQ(trace.NextUse({501}), kUnknownUse);
  EXPECT_GE(trace.NextUse({0}), 0);
}

TEST(MergedTraceTest, UsesWithoutAnEndAreNoStep) {
  MergedTrace trace = Replaying({1, 2});
  for (int i = 0; i < (64 << 10) + 10; ++i) Use(trace, {i % 2, 5});
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
  trace.BeginStep();
  EXPECT_EQ(trace.NextUse({1}), kUnknownUse);
  Use(trace, {1, 2});
  trace.BeginStep();
  EXPECT_EQ(Expected(trace, 9), (Ids{1, 2}));
}

// It is taken for none at first, and then for what it is.
TEST(MergedTraceTest, AStepOfVeryManyUsesIsFollowedFromTheThirdOn) {
  const Ids ids = FromTo(0, 300 << 10);
  MergedTrace trace;
  for (int step = 0; step < 3; ++step) {
    Use(trace, ids);
    trace.BeginStep();
  }
  EXPECT_EQ(trace.NextUse({0}), 0);
  Use(trace, FromTo(0, 100 << 10));
  EXPECT_EQ(trace.NextUse({200 << 10}), 100 << 10);
}

// A place that a lane has left does not count for the others.
TEST(MergedTraceTest, ALaneThatJumpsBackHastensNoOther) {
  MergedTrace trace;
  for (const int64_t id : FromTo(0, 1000)) trace.OnUse(kLane, {id}, 1);
  for (const int64_t id : FromTo(2000, 2100)) trace.OnUse(kOther, {id}, 1);
  trace.BeginStep();
  Use(trace, FromTo(0, 200));
  Use(trace, FromTo(900, 920));
  EXPECT_EQ(trace.NextUse({2000}), 80);
  Use(trace, FromTo(200, 220));
  EXPECT_EQ(trace.NextUse({2000}), 780);
}

// Two threads of a lane at two places of it: it stays with one of them.
TEST(MergedTraceTest, ALaneDoesNotGoToAndFro) {
  MergedTrace trace = Replaying(FromTo(0, 1000));
  const uint64_t order = trace.order();
  for (int64_t i = 0; i < 500; ++i) {
    trace.OnUse(kLane, {i}, 1);
    trace.OnUse(kLane, {i + 400}, 1);
    ASSERT_EQ(trace.NextUse({i + 5}), 4) << i;
  }
  EXPECT_EQ(trace.order(), order);
}

// The sum of a position and a next use is not what it was, where one of two
// lanes goes on alone.
TEST(MergedTraceTest, LanesThatChangeTheirPaceBeginAnotherOrder) {
  MergedTrace trace;
  for (const int64_t id : FromTo(0, 400)) {
    trace.OnUse(kLane, {id}, 1);
    trace.OnUse(kOther, {1000 + id}, 1);
  }
  trace.BeginStep();
  uint64_t order = trace.order();
  int64_t sum = trace.position() + trace.NextUse({390});
  int orders = 0;
  for (int64_t i = 0; i < 380; ++i) {
    trace.OnUse(kLane, {i}, 1);
    if (trace.order() != order) {
      order = trace.order();
      sum = trace.position() + trace.NextUse({390});
      ++orders;
    }
    ASSERT_LE(std::abs(trace.position() + trace.NextUse({390}) - sum), 51) << i;
  }
  EXPECT_GE(orders, 5);
  EXPECT_LE(orders, 8);
}

// In bytes, against a search through the whole order.
TEST(MergedTraceTest, NextUsesAreThoseOfASearch) {
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
  const auto bytes_of = [&](int64_t id) {
    return sizes[static_cast<size_t>(id)];
  };
  MergedTrace trace;
  for (const int64_t id : order) trace.OnUse(kLane, {id}, bytes_of(id));
  trace.BeginStep();
  int64_t position = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    for (int64_t id = 0; id < 9; ++id) {
      int64_t expected = 0;
      for (size_t i = at; order[i % order.size()] != id; ++i) {
        expected += bytes_of(order[i % order.size()]);
      }
      EXPECT_EQ(trace.NextUse({id}), expected) << at << " " << id;
    }
    EXPECT_EQ(trace.position(), position);
    trace.OnUse(kLane, {order[at]}, bytes_of(order[at]));
    position += bytes_of(order[at]);
  }
}

// Whatever the order of uses is: what is expected is so at a time to come, and
// the position only grows while the order stays.
TEST(MergedTraceTest, AnyOrderIsFollowed) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto tensors = static_cast<int64_t>(1 + random() % 300);
    MergedTrace trace;
    uint64_t order = trace.order();
    int64_t position = 0;
    int64_t from = 0;
    for (int i = 0; i < 3000; ++i) {
      if (random() % 700 == 0) trace.BeginStep();
      if (random() % 40 == 0) from = static_cast<int64_t>(random() % 300);
      const bool is_in_order = random() % 4 > 0;
      const int64_t id = is_in_order ? from++ : static_cast<int64_t>(random());
      const auto lane = static_cast<int64_t>(random() % 3);
      trace.OnUse(lane, {id % tensors}, 1 + static_cast<int64_t>(random() % 9));
      if (random() % 500 == 0) trace.DropLanes(lane, lane + 1);
      if (trace.order() == order) {
        ASSERT_GE(trace.position(), position) << seed;
      }
      order = trace.order();
      position = trace.position();
      for (int64_t other = 0; other < tensors; other += 7) {
        ASSERT_GE(trace.NextUse({other}), 0) << seed << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
