// How much pinned memory parameters on a device pass through.
#include "optimizer/step/staging.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/optimizer/training.h"
#include "tests/support/fake_device.h"

namespace terrace {
namespace {

TEST(StagingSlots, ASlotIsNoLargerThanAFullChunk) {
  OptimizerOptions options;
  options.chunk_bytes = 8 << 20;
  Model model = Model::Of({{"large", DType::kFloat32, (3 << 20) / 2 + 13}}, 7);
  const int64_t bytes = model.parameters()[0].spec.count * 4;
  FakeDevice device("fake:large", 16 << 20, 7);
  const ParameterData data = {device.Take(bytes), device.Take(bytes),
                              DType::kFloat32, &device};
  Training training(std::move(model), options, 2, {.budget_bytes = 64 << 20});
  ASSERT_TRUE(training.optimizer().Step({}, {&data, 1}, Soon()).ok());
  const int64_t staging = training.optimizer().last_report().staging_bytes;
  EXPECT_GT(staging, Staging::kSlots * (1 << 20));
  EXPECT_LE(staging, Staging::kSlots * (8 << 20));
}

TEST(StagingSlots, SlotsOfManyOddParametersStayWithin32MiB) {
  OptimizerOptions options;
  options.chunk_bytes = 8 << 20;
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 421; ++i) {
    specs.push_back({absl::StrCat("p", i), DType::kFloat32, 20011});
  }
  Model model = Model::Of(specs, 8);
  FakeDevice device("fake:odd", 128 << 20, 8);
  std::vector<ParameterData> data;
  for (const ParameterSpec& spec : specs) {
    data.push_back({device.Take(spec.count * 4), device.Take(spec.count * 4),
                    DType::kFloat32, &device});
  }
  Training training(std::move(model), options, 2, {.budget_bytes = 256 << 20});
  ASSERT_TRUE(training.optimizer().Step({}, data, Soon()).ok());
  const int64_t staging = training.optimizer().last_report().staging_bytes;
  EXPECT_GT(staging, 31 << 20);
  EXPECT_LE(staging, 32 << 20);
}

// What a plan says, beside what a step takes of the same parameters.
struct Staged {
  int64_t planned;
  int64_t taken;
};

Staged PlanAndStep(DType dtype, int count, int64_t elements,
                   int64_t chunk_bytes) {
  OptimizerOptions options;
  options.chunk_bytes = chunk_bytes;
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < count; ++i) {
    specs.push_back({absl::StrCat("p", i), dtype, elements});
    specs.back().on_device = true;
  }
  constexpr int64_t kBudget = 256 << 20;
  const int64_t planned =
      OffloadedOptimizer::Plan(specs, options, kBudget)->staging_bytes;
  Model model = Model::Of(specs, 8);
  FakeDevice device("fake:0", 128 << 20, 8);
  std::vector<ParameterData> data;
  for (const ParameterSpec& spec : specs) {
    const int64_t bytes = spec.count * DTypeBytes(dtype);
    data.push_back({device.Take(bytes), device.Take(bytes), dtype, &device});
  }
  Training training(std::move(model), options, 2, {.budget_bytes = kBudget});
  EXPECT_TRUE(training.optimizer().Step({}, data, Soon()).ok());
  return {planned, training.optimizer().last_report().staging_bytes};
}

TEST(StagingSlots, APlanCountsThemBeforeThereAreAny) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [count, elements] :
         {std::pair<int, int64_t>{1, (3 << 20) / 2 + 13},
          {421, 20011},
          {3, 100}}) {
      SCOPED_TRACE(
          absl::StrCat(DTypeName(dtype), ": ", count, " of ", elements));
      const Staged staged = PlanAndStep(dtype, count, elements, 8 << 20);
      EXPECT_GE(staged.planned, staged.taken);
      // Beside the padding of odd segments.
      EXPECT_LE(staged.planned, staged.taken + staged.taken / 50);
    }
  }
}

TEST(StagingSlots, WithoutADeviceThereAreNone) {
  const std::vector<ParameterSpec> specs = {{"a", DType::kFloat32, 1 << 20}};
  EXPECT_EQ(OffloadedOptimizer::Plan(specs, {}, 64 << 20)->staging_bytes, 0);
}

}  // namespace
}  // namespace terrace
