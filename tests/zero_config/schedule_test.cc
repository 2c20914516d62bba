// Each scheduler against its closed form, written again here from
// DeepSpeed's definition with last_batch_iteration = step - 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/match.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

std::string Members(const std::string& type, const std::string& params) {
  return "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}, "
         "\"scheduler\": {\"type\": \"" +
         type + "\", \"params\": {" + params + "}}";
}

LearningRateSchedule Schedule(const std::string& type,
                              const std::string& params) {
  const auto settings = ReadMembers(Members(type, params));
  EXPECT_TRUE(settings.ok()) << settings.status();
  return settings.ok() ? settings->schedule : LearningRateSchedule();
}

// `rate` of DeepSpeed's last_batch_iteration.
void ExpectRates(const LearningRateSchedule& schedule, int64_t steps,
                 const std::function<double(double)>& rate) {
  for (int64_t step = 1; step <= steps; ++step) {
    const double want = rate(static_cast<double>(step - 2));
    EXPECT_NEAR(LearningRateAt(schedule, step), want,
                1e-14 * std::max(1e-3, std::abs(want)))
        << "step " << step;
  }
}

TEST(Schedule, WithoutASchedulerTheRateStays) {
  const auto settings = ReadMembers(
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.002}}");
  ASSERT_TRUE(settings.ok());
  ExpectRates(settings->schedule, 5, [](double) { return 0.002; });
}

TEST(Schedule, WarmupRisesByTheLogarithmAndStays) {
  const auto schedule =
      Schedule("WarmupLR",
               "\"warmup_min_lr\": 0.0001, \"warmup_max_lr\": 0.01, "
               "\"warmup_num_steps\": 10");
  ExpectRates(schedule, 30, [](double i) {
    if (i < 0) return 1e-4;
    if (i >= 10) return 1e-2;
    return 1e-4 + (1e-2 - 1e-4) * std::log(i + 1) / std::log(10.0);
  });
  // Known points: the first two steps at the minimum, then a third of it all.
  EXPECT_EQ(LearningRateAt(schedule, 1), 1e-4);
  EXPECT_EQ(LearningRateAt(schedule, 2), 1e-4);
  EXPECT_NEAR(LearningRateAt(schedule, 11), 1e-2, 1e-16);
}

TEST(Schedule, LinearWarmupReachesItsEndAfterTheSteps) {
  const auto schedule = Schedule(
      "WarmupLR", "\"warmup_type\": \"linear\", \"warmup_num_steps\": 4");
  const double want[] = {0,      0,     0.0005, 0.001,
                         0.0015, 0.002, 0.002};  // of the optimizer's 0.002
  for (int step = 1; step <= 7; ++step) {
    EXPECT_NEAR(LearningRateAt(schedule, step), want[step - 1], 1e-17);
  }
}

TEST(Schedule, AWarmupOfLessThanTwoStepsTakesTwo) {
  for (const char* steps : {"\"auto\"", "1"}) {
    ZeroConfigCaller caller;
    if (steps[0] == '"') caller.warmup_num_steps = 0;
    const auto settings = ReadMembers(
        Members("WarmupLR", std::string("\"warmup_num_steps\": ") + steps),
        caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->schedule.warmup_steps, 2);
    EXPECT_EQ(settings->notes.size(), 1u);
  }
}

TEST(Schedule, WarmupDecayFallsToZeroAndStaysThere) {
  const auto schedule = Schedule(
      "WarmupDecayLR",
      "\"total_num_steps\": 50, \"warmup_num_steps\": 10, \"warmup_type\": "
      "\"linear\", \"warmup_max_lr\": 0.1");
  ExpectRates(schedule, 70, [](double i) {
    if (i < 0) return 0.0;
    if (i < 10) return 0.1 * i / 10;
    return 0.1 * std::max(0.0, (50 - i) / 40);
  });
  EXPECT_EQ(LearningRateAt(schedule, 52), 0);
}

TEST(Schedule, WarmupDecaysOwnDefaultIsAThousandth) {
  EXPECT_EQ(Schedule("WarmupDecayLR", "\"total_num_steps\": 5").most, 1e-3);
  EXPECT_EQ(Schedule("WarmupLR", "").most, 2e-3);
}

TEST(Schedule, WarmupCosineFallsToItsFloor) {
  const auto schedule = Schedule(
      "WarmupCosineLR",
      "\"total_num_steps\": 40, \"warmup_num_steps\": 8, \"cos_min_ratio\": "
      "0.1, \"warmup_min_ratio\": 0.25");
  ExpectRates(schedule, 60, [](double i) {
    if (i < 0) return 0.0;
    if (i < 8) {
      return 0.002 * (0.25 + 0.75 * std::log(i + 1) / std::log(8.0));
    }
    const double progress = std::min(1.0, (i - 7) / 32);
    return 0.002 * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * progress)));
  });
  EXPECT_NEAR(LearningRateAt(schedule, 41), 0.0002, 1e-17);
  EXPECT_NEAR(LearningRateAt(schedule, 1000), 0.0002, 1e-17);
}

TEST(Schedule, RangeTestGrowsContinuouslyOrByStairs) {
  const std::string params =
      "\"lr_range_test_min_lr\": 0.001, \"lr_range_test_step_size\": 5, "
      "\"lr_range_test_step_rate\": 2";
  ExpectRates(Schedule("LRRangeTest", params), 40,
              [](double i) { return 0.001 * (1 + 2 * (i + 1) / 5); });
  ExpectRates(
      Schedule("LRRangeTest", params + ", \"lr_range_test_staircase\": true"),
      40, [](double i) { return 0.001 * (1 + 2 * std::floor((i + 1) / 5)); });
}

const char kCycle[] =
    "\"cycle_min_lr\": 0.001, \"cycle_max_lr\": 0.011, "
    "\"cycle_first_step_size\": 10, \"cycle_second_step_size\": 20";

TEST(Schedule, OneCycleRisesFallsAndDecays) {
  const auto schedule = Schedule(
      "OneCycle",
      std::string(kCycle) + ", \"decay_step_size\": 4, \"decay_lr_rate\": 0.5");
  ExpectRates(schedule, 60, [](double i) {
    const double at = i + 1;  // within the cycle
    if (at <= 10) return 0.001 + 0.01 * at / 10;
    if (at <= 30) return 0.001 + 0.01 * (30 - at) / 20;
    return 0.001 / (1 + 0.5 * (i - 30 + 1) / 4);
  });
}

TEST(Schedule, OneCycleWithoutDecayStaysAtItsLeast) {
  const auto schedule = Schedule("OneCycle", kCycle);
  EXPECT_EQ(LearningRateAt(schedule, 100), 0.001);
  EXPECT_NEAR(LearningRateAt(schedule, 11), 0.011, 1e-17);
}

TEST(Schedule, OneCycleCanClimbStairs) {
  const auto schedule =
      Schedule("OneCycle", std::string(kCycle) +
                               ", \"cycle_first_stair_count\": 2, "
                               "\"cycle_second_stair_count\": 4");
  ExpectRates(schedule, 31, [](double i) {
    const double at = i + 1;
    if (at <= 10) return 0.001 + 0.01 * std::floor(at / 5) / 2;
    return 0.001 + 0.01 * std::floor((30 - at) / 5) / 4;
  });
}

TEST(Schedule, OneCycleTurnsTheFirstBetaTheOtherWay) {
  const AdamOptions base = {.beta1 = 0.7, .beta2 = 0.95};
  const auto cycled = Schedule("OneCycle", std::string(kCycle) +
                                               ", \"cycle_min_mom\": 0.85, "
                                               "\"cycle_max_mom\": 0.95");
  for (int64_t step = 1; step <= 60; ++step) {
    const AdamOptions adam = AdamAt(cycled, step, base);
    const double at = static_cast<double>(step - 1);
    double want = at <= 10 ? 0.95 - 0.1 * at / 10 : 0.95 - 0.1 * (30 - at) / 20;
    if (step == 1) want = 0.85;  // DeepSpeed's constructor sets the least
    if (at > 30) want = 0.95;
    EXPECT_NEAR(adam.beta1, want, 1e-15) << "step " << step;
    EXPECT_EQ(adam.beta2, 0.99);
    EXPECT_EQ(adam.learning_rate, LearningRateAt(cycled, step));
  }
  const auto still =
      Schedule("OneCycle", std::string(kCycle) + ", \"cycle_momentum\": false");
  EXPECT_EQ(AdamAt(still, 5, base).beta1, 0.7);
  EXPECT_EQ(AdamAt(still, 5, base).beta2, 0.95);
}

TEST(Schedule, AutoTakesTheCallersValues) {
  const std::string members =
      Members("WarmupDecayLR",
              "\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\", "
              "\"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"");
  ZeroConfigCaller caller;
  caller.warmup_num_steps = 7;
  EXPECT_EQ(ReadMembers(members, caller).status().code(),
            absl::StatusCode::kInvalidArgument);
  caller.total_num_steps = 70;
  auto settings = ReadMembers(members, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->schedule.warmup_steps, 7);
  EXPECT_EQ(settings->schedule.total_steps, 70);
  EXPECT_EQ(settings->schedule.least, 0);
  EXPECT_EQ(settings->schedule.most, 0.002);  // the optimizer's
  caller.warmup_max_lr = 0.5;
  caller.warmup_min_lr = 0.25;
  settings = ReadMembers(members, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->schedule.least, 0.25);
  EXPECT_EQ(settings->schedule.most, 0.5);
}

TEST(Schedule, AMissingOrForeignParameterIsNamed) {
  const struct {
    const char *type, *params, *part;
  } cases[] = {
      {"WarmupDecayLR", "", "total_num_steps"},
      {"WarmupCosineLR", "\"warmup_num_steps\": 4", "total_num_steps"},
      {"WarmupLR", "\"total_num_steps\": 4", "total_num_steps"},
      {"WarmupLR", "\"cos_min_ratio\": 0.1", "has no such parameter"},
      {"OneCycle", "\"cycle_min_lr\": 1", "cycle_max_lr"},
      {"OneCycle", "\"warmup_num_steps\": 4", "warmup_num_steps"},
  };
  for (const auto& c : cases) {
    const auto settings = ReadMembers(Members(c.type, c.params));
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(settings.status().message(), c.part))
        << settings.status();
  }
}

TEST(Schedule, AGrowingMomentumIsNotBuilt) {
  const auto settings = ReadMembers(
      Members("OneCycle", std::string(kCycle) + ", \"decay_mom_rate\": 0.1"));
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Schedule, WithoutAnOptimizerTheCallerGivesTheRate) {
  const std::string members =
      "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
      "{\"warmup_num_steps\": 2}}";
  EXPECT_EQ(ReadMembers(members).status().code(),
            absl::StatusCode::kInvalidArgument);
  ZeroConfigCaller caller;
  caller.learning_rate = 0.125;
  const auto settings = ReadMembers(members, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(LearningRateAt(settings->schedule, 10), 0.125);
}

}  // namespace
}  // namespace terrace::zero_config_test
