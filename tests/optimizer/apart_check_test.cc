#include "optimizer/step/apart_check.h"

#include <array>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizer/training.h"
#include "tests/support/fake_device.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Two parameters of ten elements in one array.
class OptimizerApart : public testing::Test {
 protected:
  OptimizerApart() : executor_(*MakePoolExecutor(2, {})) {
    auto created = OffloadedOptimizer::Create(
        runtime_, {{"a", DType::kFloat32, 10}, {"b", DType::kFloat32, 10}},
        SmallChunks());
    EXPECT_TRUE(created.ok()) << created.status();
    optimizer_ = *std::move(created);
    gradients_.fill(1);
  }

  // With the second one that many elements behind the first.
  std::string Step(size_t behind, bool second_has_gradient = true) {
    const std::array<ParameterData, 2> data = {
        {{values_.data(), gradients_.data()},
         {values_.data() + behind,
          second_has_gradient ? gradients_.data() : nullptr}}};
    const absl::Status status = optimizer_->Step({}, data, Soon());
    return status.ok()                       ? "stepped"
           : absl::IsInvalidArgument(status) ? std::string(status.message())
                                             : status.ToString();
  }

  std::array<float, 30> values_{};
  std::array<float, 10> gradients_{};
  const std::unique_ptr<Executor> executor_;
  MapRuntime runtime_{{.budget_bytes = 1 << 20}, SystemClock(), *executor_};
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST_F(OptimizerApart, SharedElementsAreRefusedBeforeAnythingChanges) {
  for (const size_t behind : {size_t{0}, size_t{9}}) {
    EXPECT_THAT(Step(behind),
                HasSubstr("parameters 0 ('a') and 1 ('b') overlap in memory"));
  }
  EXPECT_THAT(values_, testing::Each(0.0f));
  EXPECT_EQ(runtime_.calls(), 0);
  EXPECT_EQ(optimizer_->step(), 0);
}

TEST_F(OptimizerApart, NeighboursInOneArrayAreStepped) {
  EXPECT_EQ(Step(10), "stepped");
  EXPECT_THAT(std::vector<float>(values_.begin(), values_.begin() + 20),
              testing::Each(testing::Lt(0.0f)));
}

TEST_F(OptimizerApart, IsLookedAtAgainWhenAParameterMoved) {
  EXPECT_EQ(Step(10), "stepped");
  EXPECT_THAT(Step(5), HasSubstr("overlap in memory"));
  EXPECT_EQ(Step(20), "stepped");
}

TEST_F(OptimizerApart, OfAParameterWithoutAGradientNoAddressCounts) {
  EXPECT_EQ(Step(0, false), "stepped");
  EXPECT_THAT(Step(0), HasSubstr("overlap in memory"));
}

TEST(ApartCheck, EqualAddressesOfTwoDevicesAreApart) {
  FakeDevice one("fake:0", 1 << 20, 1);
  FakeDevice other("fake:1", 1 << 20, 2);
  const std::array<ParameterSpec, 2> specs = {
      {{"a", DType::kFloat32, 10}, {"b", DType::kFloat32, 10}}};
  std::array<float, 10> memory{};
  std::array<ParameterData, 2> data = {
      {{memory.data(), memory.data(), DType::kFloat32, &one},
       {memory.data(), memory.data(), DType::kFloat32, &other}}};
  ApartCheck check;
  const absl::Status apart = check.Check(specs, data);
  EXPECT_TRUE(apart.ok()) << apart;
  data[1].device = &one;
  EXPECT_THAT(check.Check(specs, data).ToString(),
              HasSubstr("overlap in memory"));
}

}  // namespace
}  // namespace terrace
