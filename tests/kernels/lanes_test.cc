#include "kernels/cpu/lanes.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace terrace {
namespace {

class LanesTest : public testing::Test {
 protected:
  // Tasks write their name's letter; as many as it has.
  static void Add(Lanes& lanes, const std::string& names, Lane lane,
                  std::string* ran) {
    for (const char name : names) {
      lanes.Add([ran, name] { *ran += name; }, lane);
    }
  }
  // A worker takes the next task and is busy with it.
  static Lane Take(Lanes& lanes) {
    const Lane lane = lanes.Next();
    lanes.Begin(lane)();
    return lane;
  }
  static void TakeAndEnd(Lanes& lanes) { lanes.End(Take(lanes)); }

  std::string ran_;
};

TEST_F(LanesTest, EachLaneIsFirstInFirstOut) {
  for (const Lane lane : {Lane::kCompute, Lane::kMotion}) {
    Lanes lanes(4);
    ran_.clear();
    Add(lanes, "abcd", lane, &ran_);
    while (!lanes.empty()) TakeAndEnd(lanes);
    EXPECT_EQ(ran_, "abcd");
  }
}

TEST_F(LanesTest, MotionOvertakesComputationThatWaits) {
  Lanes lanes(2);
  Add(lanes, "abc", Lane::kCompute, &ran_);
  Add(lanes, "12", Lane::kMotion, &ran_);
  while (!lanes.empty()) TakeAndEnd(lanes);
  EXPECT_EQ(ran_, "12abc");
}

TEST_F(LanesTest, AtMostHalfOfTheWorkersAreOnMotionWhileComputationWaits) {
  for (const auto& [workers, most] :
       {std::pair(2, 1), {3, 1}, {4, 2}, {5, 2}, {8, 4}}) {
    Lanes lanes(workers);
    ran_.clear();
    Add(lanes, "abcdefgh", Lane::kCompute, &ran_);
    Add(lanes, "12345678", Lane::kMotion, &ran_);
    int motion = 0;
    for (int i = 0; i < workers; ++i) motion += Take(lanes) == Lane::kMotion;
    EXPECT_EQ(motion, most) << workers << " workers";
    // One of them is free again: motion is next. One of the others: not.
    lanes.End(Lane::kMotion);
    EXPECT_EQ(Take(lanes), Lane::kMotion);
    lanes.End(Lane::kCompute);
    EXPECT_EQ(Take(lanes), Lane::kCompute);
  }
}

TEST_F(LanesTest, AllWorkersAreOnMotionWhileNothingElseWaits) {
  Lanes lanes(3);
  Add(lanes, "1234", Lane::kMotion, &ran_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Take(lanes), Lane::kMotion);
  // Computation that comes later is not held up by more of it.
  Add(lanes, "ab", Lane::kCompute, &ran_);
  for (const Lane lane : {Lane::kCompute, Lane::kCompute, Lane::kMotion}) {
    lanes.End(Lane::kMotion);
    EXPECT_EQ(Take(lanes), lane);
  }
  EXPECT_TRUE(lanes.empty());
}

TEST_F(LanesTest, MotionThatTakesLongLetsNoMoreOfItIn) {
  Lanes lanes(2);
  Add(lanes, "12", Lane::kMotion, &ran_);
  Add(lanes, "abcd", Lane::kCompute, &ran_);
  EXPECT_EQ(Take(lanes), Lane::kMotion);
  for (int i = 0; i < 4; ++i) TakeAndEnd(lanes);
  EXPECT_EQ(ran_, "1abcd");
  TakeAndEnd(lanes);
  EXPECT_EQ(ran_, "1abcd2");
}

TEST_F(LanesTest, OneWorkerAlternatesWhileBothWait) {
  Lanes lanes(1);
  Add(lanes, "abcd", Lane::kCompute, &ran_);
  Add(lanes, "12", Lane::kMotion, &ran_);
  while (!lanes.empty()) TakeAndEnd(lanes);
  EXPECT_EQ(ran_, "1a2bcd");
}

TEST_F(LanesTest, OneWorkerRunsMotionWithoutPauseWhileItIsAlone) {
  Lanes lanes(1);
  Add(lanes, "123", Lane::kMotion, &ran_);
  TakeAndEnd(lanes);
  TakeAndEnd(lanes);
  Add(lanes, "a", Lane::kCompute, &ran_);
  while (!lanes.empty()) TakeAndEnd(lanes);
  EXPECT_EQ(ran_, "12a3");
}

using LanesDeathTest = LanesTest;

TEST_F(LanesDeathTest, NothingIsTakenOfWhatIsEmptyOrNotBegun) {
  Lanes lanes(2);
  EXPECT_DEATH(lanes.Next(), "internal error");
  EXPECT_DEATH(lanes.Begin(Lane::kCompute), "internal error");
  EXPECT_DEATH(lanes.End(Lane::kMotion), "internal error");
  EXPECT_DEATH(Lanes(0), "internal error");
}

}  // namespace
}  // namespace terrace
