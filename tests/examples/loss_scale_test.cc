// fp16's loss scale against DeepSpeed's rule, as its 0.19.8 has it at stages 1
// to 3: with numbers of steps in place of counts.
#include "examples/train_gpt/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {
namespace {

using ::terrace::LossScaleSettings;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The value before each step and behind the last; ends where DeepSpeed raises.
std::vector<double> DeepSpeedsValues(const LossScaleSettings& settings,
                                     const std::vector<bool>& overflows) {
  double value = settings.initial;
  int64_t hysteresis = settings.hysteresis, last_overflow = -1;
  std::vector<double> values = {value};
  for (int64_t step = 0; step < static_cast<int64_t>(overflows.size());
       ++step) {
    if (overflows[step]) {
      if (settings.hysteresis == 1 || hysteresis == 1) {
        if (value == settings.least) return values;
        value = std::max(value / 2, settings.least);
      } else {
        --hysteresis;
      }
      last_overflow = step;
    } else {
      if (settings.consecutive_hysteresis) hysteresis = settings.hysteresis;
      const int64_t stable = step - last_overflow - 1;
      if (stable > 0 && stable % settings.window == 0) {
        hysteresis = settings.hysteresis;
        value *= 2;
      }
    }
    values.push_back(value);
  }
  return values;
}

std::vector<double> Values(const LossScaleSettings& settings,
                           const std::vector<bool>& overflows) {
  LossScale scale(settings);
  std::vector<double> values = {scale.value()};
  for (const bool overflow : overflows) {
    if (!scale.Update(overflow).ok()) break;
    values.push_back(scale.value());
  }
  return values;
}

TEST(LossScaleTest, AnySequenceOfStepsHasDeepSpeedsScales) {
  std::mt19937 random(20261126);
  for (int round = 0; round < 500; ++round) {
    const LossScaleSettings settings = {
        .initial = static_cast<double>(1 << random() % 17),
        .window = 1 + static_cast<int64_t>(random() % 5),
        .hysteresis = 1 + static_cast<int64_t>(random() % 3),
        .consecutive_hysteresis = random() % 2 == 0,
        .least = 1};
    const unsigned share = 1 + random() % 6;
    std::vector<bool> overflows;
    for (int step = 0; step < 60; ++step) {
      overflows.push_back(random() % 6 < share);
    }
    EXPECT_EQ(Values(settings, overflows),
              DeepSpeedsValues(settings, overflows))
        << "round " << round;
  }
}

TEST(LossScaleTest, AFixedScaleStays) {
  EXPECT_THAT(Values({.dynamic = false, .initial = 100}, {true, false, true}),
              ElementsAre(100, 100, 100, 100));
}

TEST(LossScaleTest, WithoutFp16ItIsOne) {
  LossScale scale(std::nullopt);
  EXPECT_TRUE(scale.Update(true).ok());
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScaleTest, AnOverflowAtTheLeastScaleIsAnErrorThatNamesIt) {
  LossScale scale(LossScaleSettings{.initial = 4, .hysteresis = 1, .least = 2});
  EXPECT_TRUE(scale.Update(true).ok());
  const absl::Status status = scale.Update(true);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("scale of 2, the least that fp16.min_loss_scale"));
}

TEST(LossScaleTest, OneThatGoesOnFromItsStateIsTheSame) {
  const LossScaleSettings settings = {.initial = 64, .window = 3};
  LossScale whole(settings);
  for (int step = 0; step < 40; ++step) {
    LossScale again(settings);
    again.set_state(whole.state());
    const bool overflow = step % 7 == 0;
    ASSERT_TRUE(whole.Update(overflow).ok());
    ASSERT_TRUE(again.Update(overflow).ok());
    EXPECT_EQ(again.state(), whole.state()) << step;
  }
}

}  // namespace
}  // namespace train_gpt
