// When the state may be used, and what is counted of it.
#include "optimizer/state/state_guard.h"

#include <vector>

#include "gtest/gtest.h"
#include "optimizer/state/step_counts.h"

namespace terrace {
namespace {

TEST(StateGuard, NothingElseWhileItIsReadOrWritten) {
  StateGuard guard("adam");
  EXPECT_TRUE(guard.CheckFree("no step").ok());
  guard.BeginRead();
  EXPECT_EQ(guard.CheckFree("no step").message(),
            "no step while the state is read");
  guard.EndRead();
  EXPECT_TRUE(guard.CheckFree("no step").ok());
  guard.BeginLoad();
  EXPECT_EQ(guard.CheckFree("no step").message(),
            "no step while the state is written");
}

TEST(StateGuard, ALoadThatEndedHalfWayIsNotLoaded) {
  StateGuard guard("adam");
  guard.BeginLoad();
  guard.EndLoad(false);
  EXPECT_TRUE(guard.CheckFree("no step").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(guard.CheckLoaded("no step")));
  guard.BeginLoad();
  guard.EndLoad(true);
  EXPECT_TRUE(guard.CheckLoaded("no step").ok());
}

TEST(StateGuard, WhatIsOfNoMoreUseSaysWhy) {
  StateGuard guard("adam");
  guard.Poison(absl::DataLossError("chunk 3"));
  EXPECT_EQ(guard.CheckUsable(), absl::DataLossError("chunk 3"));
  EXPECT_EQ(guard.CheckFree("no step"), absl::DataLossError("chunk 3"));
}

class StepCountsTest : public testing::Test {
 protected:
  StepCountsTest() { counts_.Resize(2); }

  const std::vector<ParameterSpec> specs_ = {{.name = "a", .count = 5},
                                             {.name = "b", .count = 7}};
  StepCounts counts_;
};

TEST_F(StepCountsTest, CountsTheParametersWithAGradient) {
  const float gradient = 0;
  std::vector<ParameterData> parameters(2);
  parameters[1].gradient = &gradient;
  counts_.CountStep(specs_, parameters);
  EXPECT_EQ(counts_.step(), 1);
  EXPECT_EQ(counts_.by_parameter()[0], 0);
  EXPECT_EQ(counts_.by_parameter()[1], 1);
  EXPECT_EQ(counts_.master_written(1), 7);
}

TEST_F(StepCountsTest, AMasterThatWasWrittenInPartIsNamed) {
  counts_.master_written(0) = 5;
  EXPECT_TRUE(counts_.CheckMasters(specs_).ok());
  counts_.master_written(1) = 3;
  EXPECT_EQ(counts_.CheckMasters(specs_).message(),
            "parameter 'b' has a master of which 3 of 7 elements were written");
}

TEST_F(StepCountsTest, AssignsAllOrNothing) {
  EXPECT_TRUE(absl::IsInvalidArgument(counts_.Assign(specs_, 4, {1})));
  EXPECT_TRUE(absl::IsInvalidArgument(counts_.Assign(specs_, -1, {1, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(counts_.Assign(specs_, 4, {1, -1})));
  EXPECT_EQ(counts_.step(), 0);
  EXPECT_TRUE(counts_.Assign(specs_, 4, {3, 4}).ok());
  counts_.Forget(1);
  EXPECT_EQ(counts_.step(), 4);
  EXPECT_EQ(counts_.by_parameter()[0], 3);
  EXPECT_EQ(counts_.by_parameter()[1], 0);
  counts_.Clear();
  EXPECT_EQ(counts_.step(), 0);
  EXPECT_EQ(counts_.by_parameter()[0], 0);
}

}  // namespace
}  // namespace terrace
