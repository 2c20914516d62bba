// Steps of a program that computes in a mode of its own: the bits are those of
// the reference in the default mode.
#include "base/floating_point.h"

#include <cfenv>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/optimizer/training.h"
#include "tests/support/floating_point_mode.h"

namespace terrace {
namespace {

// Without fp16, in which huge gradients are infinite.
Model WideRanged(uint64_t seed) {
  return Model::Of({{"prime", DType::kFloat32, 30011},
                    {"half", DType::kBFloat16, 20011},
                    {"one", DType::kFloat32, 1}},
                   seed);
}

class InEveryMode : public testing::TestWithParam<FloatingPointMode> {};

// Moments that are subnormal, and constants that round.
constexpr float kTiny = 1e-18f;
// 1/ratio of the clip is 1e-41: subnormal.
constexpr float kHuge = 1e30f;
constexpr double kTightClip = 1e-10;

void StepBothIn(FloatingPointMode mode, Training& training, int64_t step,
                float scale) {
  const StepArguments arguments{
      .learning_rate = 1e-2 / 3,
      .max_gradient_norm = scale == kHuge ? kTightClip : 1.0};
  training.model().DrawGradients(step, scale);
  training.reference().Step(arguments, training.model());
  absl::Status status;
  {
    const ForeignFloatingPoint foreign(mode);
    status = training.Step(arguments);
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(training.reference().Difference(training.model()), "");
  EXPECT_EQ(training.optimizer().last_report().gradient_norm,
            training.reference().gradient_norm());
}

TEST_P(InEveryMode, APoolMadeInItGivesTheBitsOfTheReference) {
  Model model = WideRanged(21);
  std::unique_ptr<Training> training;
  {
    const ForeignFloatingPoint foreign(GetParam());
    training = std::make_unique<Training>(
        std::move(model), SmallChunks(), 2,
        MapRuntime::Behaviour{.budget_bytes = 1 << 20});
  }
  for (int step = 1; step <= 3; ++step) {
    training->StepBoth(step, {}, kTiny);
  }
  training->ExpectSameState();
}

TEST_P(InEveryMode, StepsCalledInItGiveTheBitsOfTheReference) {
  Training training(WideRanged(22), SmallChunks(), 2,
                    {.budget_bytes = 1 << 20});
  for (const float scale : {kTiny, kHuge, 1.0f}) {
    for (int step = 1; step <= 2; ++step) {
      StepBothIn(GetParam(), training, training.reference().step() + 1, scale);
    }
  }
  training.ExpectSameState();
}

TEST_P(InEveryMode, AStepLeavesTheCallersModeAsItWas) {
  Training training(WideRanged(23), SmallChunks(), 1,
                    {.budget_bytes = 1 << 20});
  training.model().DrawGradients(1);
  const ForeignFloatingPoint foreign(GetParam());
  std::fenv_t before;
  std::fegetenv(&before);
  const absl::Status status = training.Step({.max_gradient_norm = 1.0});
  std::fenv_t after;
  std::fegetenv(&after);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::fegetround(), GetParam() == FloatingPointMode::kRoundUp
                                   ? FE_UPWARD
                                   : FE_TONEAREST);
#if defined(__x86_64__)
  EXPECT_EQ(after.__mxcsr & ~static_cast<unsigned>(FE_ALL_EXCEPT),
            before.__mxcsr & ~static_cast<unsigned>(FE_ALL_EXCEPT));
#endif
}

TEST(DefaultFloatingPoint, EndsWithItsScope) {
  const ForeignFloatingPoint foreign(FloatingPointMode::kRoundUp);
  {
    const DefaultFloatingPoint mode;
    EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  }
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
}

INSTANTIATE_TEST_SUITE_P(Modes, InEveryMode,
                         testing::Values(FloatingPointMode::kFlushSubnormals,
                                         FloatingPointMode::kRoundUp,
                                         FloatingPointMode::kTrap),
                         [](const auto& mode) {
                           return FloatingPointModeName(mode.param);
                         });

}  // namespace
}  // namespace terrace
