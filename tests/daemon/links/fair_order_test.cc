// Who goes next among those who wait for a link: a value, no time, no threads.
#include "daemon/links/fair_order.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kPiece = 256 << 10;

class FairOrderTest : public testing::Test {
 protected:
  FairOrderTest() { order_.SetLimit(2 * kPiece); }

  // A process of a job of its own of a user of its own.
  int AddUser(int weight) {
    return order_.Add(order_.Add(order_.Add(FairOrder::kRoot, weight), 1), 1);
  }
  int Next() const {
    return order_.Next([](int /*leaf*/) { return true; });
  }
  // Each time all of them wait, with these classes; served `count` times.
  std::map<int, int> Serve(const std::vector<std::pair<int, IoClass>>& leaves,
                           int count) {
    std::map<int, int> served;
    for (int i = 0; i < count; ++i) {
      for (const auto& [leaf, io_class] : leaves) order_.Wait(leaf, io_class);
      const int next = Next();
      order_.Serve(next, kPiece);
      ++served[next];
    }
    return served;
  }

  FairOrder order_;
};

TEST_F(FairOrderTest, EachHasTheShareOfItsWeight) {
  const int heavy = AddUser(3);
  const int light = AddUser(1);
  auto served =
      Serve({{heavy, IoClass::kDemand}, {light, IoClass::kDemand}}, 4000);
  EXPECT_NEAR(served[heavy], 3000, 1);
  EXPECT_NEAR(served[light], 1000, 1);
}

TEST_F(FairOrderTest, JobsShareWhatTheirUserHasAndProcessesWhatTheirJobHas) {
  const int many = order_.Add(FairOrder::kRoot, 1);
  const int night = order_.Add(many, 3);
  const int day = order_.Add(many, 1);
  std::vector<std::pair<int, IoClass>> leaves;
  for (int i = 0; i < 3; ++i) {
    leaves.emplace_back(order_.Add(night, 1), IoClass::kDemand);
  }
  leaves.emplace_back(order_.Add(day, 1), IoClass::kDemand);
  leaves.emplace_back(AddUser(1), IoClass::kDemand);
  const auto served = Serve(leaves, 8000);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(served.at(leaves[i].first), 1000, 2);
  }
  EXPECT_NEAR(served.at(leaves[3].first), 1000, 2);
  EXPECT_NEAR(served.at(leaves[4].first), 4000, 2);
}

// A plain loop over vectors: who has had the least for its weight, of equal
// ones the first.
TEST_F(FairOrderTest, TheOrderIsThatOfASerialLoop) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    FairOrder order;
    const size_t count = 1 + random() % 8;
    std::vector<int> leaves;
    std::vector<int> weights;
    std::vector<double> had(count, 0);
    for (size_t i = 0; i < count; ++i) {
      weights.push_back(static_cast<int>(1 + random() % 16));
      leaves.push_back(order.Add(FairOrder::kRoot, weights.back()));
    }
    for (int i = 0; i < 500; ++i) {
      size_t least = 0;
      for (size_t k = 0; k < count; ++k) {
        order.Wait(leaves[k], IoClass::kPrefetch);
        if (had[k] < had[least]) least = k;
      }
      const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 64);
      const int next = order.Next([](int /*leaf*/) { return true; });
      ASSERT_EQ(next, leaves[least]) << "round " << round << ", piece " << i;
      order.Serve(next, bytes);
      had[least] += static_cast<double>(bytes) / weights[least];
    }
  }
}

// Theorem 1 of the paper: of two that wait all the time what they were served
// over their weights is apart by no more than a piece of each, whoever else
// comes and goes.
TEST_F(FairOrderTest, TwoThatWaitAllTheTimeAreNeverFurtherApartThanAPiece) {
  std::mt19937_64 random(11);
  std::vector<int> leaves;
  const std::array<int, 2> weights = {5, 2};
  for (const int weight : weights) leaves.push_back(AddUser(weight));
  for (int i = 0; i < 6; ++i) {
    leaves.push_back(AddUser(static_cast<int>(1 + random() % 9)));
  }
  std::array<double, 2> had = {};
  const double most = kPiece / 5.0 + kPiece / 2.0 + 1;
  for (int i = 0; i < 20'000; ++i) {
    for (size_t k = 2; k < leaves.size(); ++k) {
      if (random() % 8 == 0) order_.Rest(leaves[k]);
      if (random() % 8 == 0) order_.Wait(leaves[k], IoClass::kDemand);
    }
    for (size_t k = 0; k < 2; ++k) order_.Wait(leaves[k], IoClass::kDemand);
    const int64_t bytes = 4096 * static_cast<int64_t>(1 + random() % 64);
    const int next = Next();
    order_.Serve(next, bytes);
    for (size_t k = 0; k < 2; ++k) {
      if (next == leaves[k]) had[k] += static_cast<double>(bytes) / weights[k];
    }
    ASSERT_LE(std::abs(had[0] - had[1]), most) << "piece " << i;
  }
}

TEST_F(FairOrderTest, WhatIsWaitedForGoesFirstThenWhatIsFetchedAhead) {
  const int writes = AddUser(1);
  const int fetches = AddUser(1);
  const int demands = AddUser(1);
  order_.Wait(writes, IoClass::kWriteBack);
  order_.Wait(fetches, IoClass::kPrefetch);
  order_.Wait(demands, IoClass::kDemand);
  for (const int leaf : {demands, fetches, writes}) {
    EXPECT_EQ(Next(), leaf);
    order_.Serve(leaf, kPiece);
  }
  EXPECT_EQ(Next(), FairOrder::kNone);
}

// It is ahead by so many limits, and then it has its share.
TEST_F(FairOrderTest, WhoFloodsWithDemandsDoesNotStarveWriteBack) {
  const int demands = AddUser(1);
  const int writes = AddUser(1);
  const std::vector<std::pair<int, IoClass>> all = {
      {demands, IoClass::kDemand}, {writes, IoClass::kWriteBack}};
  const auto ahead = static_cast<int>(FairOrder::kAwaitedLimits);
  auto served = Serve(all, ahead);
  EXPECT_EQ(served[demands], ahead);
  served = Serve(all, 1000);
  EXPECT_NEAR(served[demands], 500, 2);
  EXPECT_NEAR(served[writes], 500, 2);
}

// However unlike their weights are.
TEST_F(FairOrderTest, OfOneClassNobodyIsAhead) {
  const int heavy = AddUser(1000);
  const int light = AddUser(1);
  auto served =
      Serve({{light, IoClass::kDemand}, {heavy, IoClass::kDemand}}, 2002);
  EXPECT_NEAR(served[light], 2, 1);
}

TEST_F(FairOrderTest, WhoHasRestedHasSavedUpNothing) {
  const int idle = AddUser(1);
  const int busy = AddUser(1);
  Serve({{busy, IoClass::kDemand}}, 1000);
  auto served =
      Serve({{idle, IoClass::kDemand}, {busy, IoClass::kDemand}}, 100);
  EXPECT_NEAR(served[idle], 50, 1);
}

// Its thread was late to ask again.
TEST_F(FairOrderTest, WhoIsThereComesBackForWhatItMissedUpToAFewLimits) {
  const int late = AddUser(1);
  const int other = AddUser(1);
  const std::vector<std::pair<int, IoClass>> both = {{late, IoClass::kDemand},
                                                     {other, IoClass::kDemand}};
  Serve(both, 100);
  order_.Pause(late);
  Serve({{other, IoClass::kDemand}}, 10);
  EXPECT_NEAR(Serve(both, 10)[late], 10, 1);
  order_.Pause(late);
  Serve({{other, IoClass::kDemand}}, 1000);
  const auto most = static_cast<int>(2 * FairOrder::kLateLimits);
  EXPECT_NEAR(Serve(both, 100)[late], most + (100 - most) / 2, 2);
}

TEST_F(FairOrderTest, WhoComesHasNoMoreThanWhoWasThere) {
  const int old = AddUser(1);
  Serve({{old, IoClass::kDemand}}, 1000);
  const int young = AddUser(1);
  auto served =
      Serve({{young, IoClass::kDemand}, {old, IoClass::kDemand}}, 100);
  EXPECT_NEAR(served[young], 50, 1);
}

TEST_F(FairOrderTest, AnotherWeightHoldsFromThereOn) {
  const int one = order_.Add(FairOrder::kRoot, 1);
  const int two = order_.Add(FairOrder::kRoot, 1);
  const std::vector<std::pair<int, IoClass>> both = {{one, IoClass::kDemand},
                                                     {two, IoClass::kDemand}};
  Serve(both, 1000);
  order_.SetWeight(one, 4);
  EXPECT_NEAR(Serve(both, 1000)[one], 800, 2);
}

TEST_F(FairOrderTest, WhoMayNotGoIsPassedOverAndKeepsItsTurn) {
  const int one = AddUser(1);
  const int two = AddUser(1);
  order_.Wait(one, IoClass::kDemand);
  order_.Wait(two, IoClass::kDemand);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(order_.Next([&](int leaf) { return leaf != one; }), two);
    order_.Serve(two, kPiece);
    order_.Wait(two, IoClass::kDemand);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Next(), one);
    order_.Serve(one, kPiece);
    order_.Wait(one, IoClass::kDemand);
  }
}

TEST_F(FairOrderTest, WhatWasNotServedIsGivenBack) {
  const int one = AddUser(1);
  const int two = AddUser(1);
  order_.Wait(one, IoClass::kDemand);
  order_.Wait(two, IoClass::kDemand);
  order_.Serve(one, kPiece);
  EXPECT_EQ(Next(), two);
  order_.Refund(one, kPiece);
  order_.Wait(one, IoClass::kDemand);
  EXPECT_EQ(Next(), one);
}

// Else a user's jobs of ever new names would be remembered for ever.
TEST_F(FairOrderTest, OnceNobodyIsThereNobodyIsAhead) {
  const int user = order_.Add(FairOrder::kRoot, 1);
  for (int i = 0; i < 3; ++i) {
    const int job = order_.Add(user, 1);
    const int process = order_.Add(job, 1);
    order_.Wait(process, IoClass::kDemand);
    order_.Serve(Next(), kPiece);
    EXPECT_TRUE(order_.IsAhead(job));
    order_.Rest(process);
    for (const int each : {process, job, user}) {
      EXPECT_FALSE(order_.IsAhead(each)) << each;
    }
    order_.Remove(process);
    order_.Remove(job);
  }
}

TEST_F(FairOrderTest, WhoIsAheadIsKnownUntilTheOthersHaveCaughtUp) {
  const int user = order_.Add(FairOrder::kRoot, 1);
  const int leaf = order_.Add(order_.Add(user, 1), 1);
  const int other = AddUser(1);
  Serve({{leaf, IoClass::kDemand}, {other, IoClass::kWriteBack}}, 8);
  EXPECT_TRUE(order_.IsAhead(user));
  order_.Rest(leaf);
  Serve({{other, IoClass::kWriteBack}}, 20);
  EXPECT_FALSE(order_.IsAhead(user));
}

}  // namespace
}  // namespace terrace
