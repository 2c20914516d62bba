#include "runtime/tensor/wanted_tensors.h"

#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(WantedTensorsTest, ATensorIsWantedUntilItsLastGroupIsGone) {
  const std::vector<Want> both = {{TensorId{1}, Access::kRead},
                                  {TensorId{2}, Access::kUpdate}};
  const std::vector<Want> one = {{TensorId{2}, Access::kRead}};
  WantedTensors wanted;
  EXPECT_FALSE(wanted.Contains(TensorId{1}));
  wanted.Add(both);
  wanted.Add(one);
  EXPECT_TRUE(wanted.Contains(TensorId{1}));
  EXPECT_TRUE(wanted.Contains(TensorId{2}));
  wanted.Remove(both);
  EXPECT_FALSE(wanted.Contains(TensorId{1}));
  EXPECT_TRUE(wanted.Contains(TensorId{2}));
  wanted.Remove(one);
  EXPECT_FALSE(wanted.Contains(TensorId{2}));
  EXPECT_EQ(wanted, WantedTensors());
}

}  // namespace
}  // namespace terrace
