// Where write-backs go, as steps repeat: shares, neighbours, failures. The
// reference is arithmetic: rates and what each path would take at them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "policies/path_placement.h"

namespace terrace {
namespace {

constexpr int64_t kChunk = 1 << 20;

// A step's chunks in order, written back one after the other by paths that
// move at `rates` both ways and say so exactly.
class Steps {
 public:
  Steps(std::vector<double> rates, int chunks)
      : rates_(std::move(rates)),
        usable_(rates_.size(), true),
        placement_(static_cast<int>(rates_.size()), {}),
        homes_(static_cast<size_t>(chunks)) {
    for (size_t i = 0; i < homes_.size(); ++i) {
      homes_[i] = static_cast<int>(i % rates_.size());
    }
    Measure();
  }

  void SetRate(int path, double rate) {
    rates_[static_cast<size_t>(path)] = rate;
    Measure();
  }
  void Step() {
    moves_ = 0;
    for (int& home : homes_) {
      const int target = placement_.ChooseTarget(home, usable_, kChunk);
      ASSERT_GE(target, 0);
      placement_.OnPlaced(target, kChunk);
      moves_ += target == home ? 0 : 1;
      home = target;
    }
  }
  // The sum of the rates, over what the slowest path leaves of it.
  double Efficiency() const { return Efficiency(0, homes_.size()); }
  double Efficiency(size_t from, size_t count) const {
    std::vector<double> seconds(rates_.size());
    for (size_t i = from; i < from + count; ++i) {
      const auto path = static_cast<size_t>(homes_[i]);
      seconds[path] += 1 / rates_[path];
    }
    double sum = 0;
    for (const double rate : rates_) sum += rate;
    return static_cast<double>(count) / sum /
           *std::max_element(seconds.begin(), seconds.end());
  }
  int64_t On(int path) const {
    return std::count(homes_.begin(), homes_.end(), path);
  }
  int moves() const { return moves_; }
  Placement& placement() { return placement_; }
  const std::vector<int>& homes() const { return homes_; }

 private:
  void Measure() {
    for (int i = 0; i < static_cast<int>(rates_.size()); ++i) {
      const double seconds = kChunk / rates_[static_cast<size_t>(i)];
      for (int j = 0; j < 100; ++j) {
        placement_.read_rate(i).Add(1, kChunk, seconds);
        placement_.write_rate(i).Add(1, kChunk, seconds);
      }
    }
  }

  std::vector<double> rates_;
  PathFlags usable_;
  Placement placement_;
  std::vector<int> homes_;
  int moves_ = 0;
};

TEST(PathChoiceTest, ThreeToOneIsReachedInOneStepAndKept) {
  Steps steps({3e9, 1e9}, 256);
  steps.Step();
  EXPECT_GE(steps.Efficiency(), 0.96);
  for (int i = 0; i < 5; ++i) {
    steps.Step();
    EXPECT_GE(steps.Efficiency(), 0.97);
    EXPECT_LE(steps.moves(), 4) << "moves for nothing";
  }
}

TEST(PathChoiceTest, NeighboursAreSpreadInProportion) {
  Steps steps({3e9, 1e9}, 256);
  for (int i = 0; i < 3; ++i) steps.Step();
  // What a window of sixteen chunks has at a time.
  for (size_t from = 0; from + 16 <= 256; ++from) {
    EXPECT_GE(steps.Efficiency(from, 16), 0.6) << from;
  }
}

TEST(PathChoiceTest, WhenOneHalvesTheNextStepIsBalancedAgain) {
  for (const int path : {0, 1}) {
    Steps steps({3e9, 1e9}, 256);
    for (int i = 0; i < 3; ++i) steps.Step();
    steps.SetRate(path, path == 0 ? 1.5e9 : 0.5e9);
    EXPECT_LT(steps.Efficiency(), 0.85);
    steps.Step();
    EXPECT_GE(steps.Efficiency(), 0.96) << "path " << path;
  }
}

TEST(PathChoiceTest, AnyRatesAreSharedOut) {
  constexpr uint64_t kSeed = 77;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  std::mt19937_64 random(kSeed);
  for (int run = 0; run < 300; ++run) {
    std::vector<double> rates;
    for (uint64_t i = 0; i < 2 + random() % 4; ++i) {
      rates.push_back(1e8 * static_cast<double>(1 + random() % 30));
    }
    Steps steps(rates, 1024);
    for (int step = 0; step < 3; ++step) {
      steps.Step();
      const auto changed = static_cast<int>(random() % rates.size());
      if (step == 0) steps.SetRate(changed, 1e8 * (1 + run % 30));
    }
    EXPECT_GE(steps.Efficiency(), 0.95) << "run " << run;
  }
}

TEST(PathChoiceTest, UnknownRatesLeaveEverythingAtHome) {
  Placement placement(3, {});
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(placement.ChooseTarget(i % 3, {true, true, true}, kChunk), i % 3);
    placement.OnPlaced(i % 3, kChunk);
  }
}

TEST(PathChoiceTest, APriorCountsBeforeAnythingIsMeasured) {
  const std::vector<PathPrior> priors = {{3e9, 3e9}, {1e9, 1e9}};
  const Placement placement(2, priors);
  EXPECT_EQ(placement.ChooseHome(std::vector<int64_t>{2 * kChunk, 0},
                                 {true, true}, kChunk),
            0);
  EXPECT_EQ(placement.ChooseHome(std::vector<int64_t>{3 * kChunk, 0},
                                 {true, true}, kChunk),
            1);
}

TEST(PathChoiceTest, WhatRefusesGetsNothingUntilItIsTriedWithOne) {
  const PathFlags all = {true, true};
  Placement placement(2, {});
  placement.OnWritten(0, false, 0);
  EXPECT_EQ(placement.trust(0), PathTrust::kRefusing);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(placement.ChooseTarget(0, all, kChunk), 1);
    placement.OnPlaced(1, kChunk);
  }
  placement.TryAgain({true, false});  // held back
  EXPECT_EQ(placement.ChooseTarget(0, all, kChunk), 1);
  placement.TryAgain({false, false});
  EXPECT_EQ(placement.ChooseTarget(1, all, kChunk), 0);
  EXPECT_FALSE(placement.trying());
  placement.OnPlaced(0, kChunk);  // one, and no more before it has ended
  EXPECT_TRUE(placement.trying());
  placement.TryAgain({false, false});
  EXPECT_EQ(placement.ChooseTarget(0, all, kChunk), 1);
  EXPECT_TRUE(placement.refuses(0));
  placement.OnWritten(0, true, 0);  // was under way before it failed
  EXPECT_TRUE(placement.refuses(0));
  placement.OnWritten(0, true, placement.failures(0));
  EXPECT_FALSE(placement.refuses(0));
  EXPECT_FALSE(placement.trying());
  EXPECT_EQ(placement.trust(0), PathTrust::kGood);
  // It does not get all that it missed.
  int got = 0;
  for (int i = 0; i < 20; ++i) {
    const int target = placement.ChooseTarget(1, all, kChunk);
    placement.OnPlaced(target, kChunk);
    got += target == 0 ? 1 : 0;
  }
  EXPECT_GE(got, 8);
  EXPECT_LE(got, 14);
}

TEST(PathChoiceTest, WithNoneToTrustThereIsNoTarget) {
  Placement placement(2, {});
  placement.OnWritten(0, false, 0);
  placement.OnWritten(1, false, 0);
  EXPECT_EQ(placement.ChooseTarget(0, {true, true}, kChunk), -1);
  EXPECT_EQ(placement.ChooseHome(std::vector<int64_t>{0, 0}, {true, true}, 1),
            -1);
}

TEST(PathChoiceTest, WhatCannotBeReadIsWrittenToLast) {
  const PathFlags all = {true, true};
  Placement placement(2, {});
  placement.OnRead(0, false);
  EXPECT_EQ(placement.trust(0), PathTrust::kDoubtful);
  EXPECT_EQ(placement.ChooseTarget(0, all, kChunk), 1);
  EXPECT_EQ(placement.ChooseTarget(0, {true, false}, kChunk), 0);
  EXPECT_EQ(placement.ChooseHome(std::vector<int64_t>{0, 1 << 30}, all, 1), 1);
  placement.OnWritten(1, false, 0);
  EXPECT_EQ(placement.ChooseTarget(1, all, kChunk), 0);
  placement.OnRead(0, true);
  EXPECT_EQ(placement.trust(0), PathTrust::kGood);
}

TEST(PathChoiceTest, ADeviceThatStallsIsPassedBy) {
  Steps steps({1e9, 1e9}, 64);
  steps.Step();
  steps.placement().write_rate(0).SetUnanswered(1, kChunk);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(steps.placement().ChooseTarget(0, {true, true}, kChunk), 1);
    steps.placement().OnPlaced(1, kChunk);
  }
  steps.placement().write_rate(0).Add(1, kChunk, kChunk / 1e9);
  EXPECT_EQ(steps.placement().ChooseTarget(1, {true, true}, kChunk), 0);
}

}  // namespace
}  // namespace terrace
