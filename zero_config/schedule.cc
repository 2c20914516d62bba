#include <algorithm>
#include <cmath>
#include <cstdint>

#include "terrace/zero_config.h"

namespace terrace {
namespace {

using Schedule = LearningRateSchedule;

constexpr double kPi = 3.14159265358979323846;

// From 0 to 1 over the warm-up; `done` steps were taken before this one.
double WarmupShare(const Schedule& s, int64_t done) {
  if (s.logarithmic) {
    return std::log(static_cast<double>(done + 1)) /
           std::log(static_cast<double>(s.warmup_steps));
  }
  return static_cast<double>(done) / static_cast<double>(s.warmup_steps);
}

double Warmup(const Schedule& s, int64_t iteration) {
  if (iteration < 0) return s.least;
  double share = 1;
  if (iteration < s.warmup_steps) {
    share = WarmupShare(s, iteration);
  } else if (s.kind == Schedule::Kind::kWarmupDecay) {
    const auto left = static_cast<double>(s.total_steps - iteration);
    const auto all = static_cast<double>(
        std::max<int64_t>(1, s.total_steps - s.warmup_steps));
    share = std::max(0.0, left / all);
  }
  return s.least + (s.most - s.least) * share;
}

double WarmupCosine(const Schedule& s, int64_t iteration) {
  if (iteration < 0) return 0;
  if (iteration < s.warmup_steps) {
    return s.base *
           (s.least_ratio + (1 - s.least_ratio) * WarmupShare(s, iteration));
  }
  const auto all =
      static_cast<double>(std::max<int64_t>(1, s.total_steps - s.warmup_steps));
  const double progress =
      std::min(1.0, static_cast<double>(iteration - s.warmup_steps + 1) / all);
  const double share = (1 + std::cos(kPi * progress)) / 2;
  return s.base * std::max(0.0, s.cosine_ratio + (1 - s.cosine_ratio) * share);
}

double RangeTest(const Schedule& s, int64_t iteration) {
  double interval =
      static_cast<double>(iteration + 1) / static_cast<double>(s.step_size);
  if (s.staircase) interval = std::floor(interval);
  return s.least * (1 + s.rate * interval);
}

// From 0 at the ends of the cycle to 1 at its peak.
double CycleShare(const Schedule& s, int64_t iteration) {
  const int64_t cycle = s.first_steps + s.second_steps;
  const int64_t position = (iteration + 1) % cycle;
  const bool rising = position <= s.first_steps;
  const auto height = static_cast<double>(rising ? position : cycle - position);
  const auto half =
      static_cast<double>(rising ? s.first_steps : s.second_steps);
  const auto stairs =
      static_cast<double>(rising ? s.first_stairs : s.second_stairs);
  if (stairs == 0) return height / half;
  return std::floor(height * stairs / half) / stairs;
}

double OneCycle(const Schedule& s, int64_t iteration) {
  if (iteration < 0) return s.least;
  const int64_t cycle = s.first_steps + s.second_steps;
  if (iteration < cycle) {
    return s.least + (s.most - s.least) * CycleShare(s, iteration);
  }
  if (s.decay_steps == 0) return s.least;
  const double interval = static_cast<double>(iteration - cycle + 1) /
                          static_cast<double>(s.decay_steps);
  return s.least / (1 + s.rate * interval);
}

double CycledMomentum(const Schedule& s, int64_t iteration) {
  if (iteration < 0) return s.least_momentum;
  if (iteration >= s.first_steps + s.second_steps) return s.most_momentum;
  return s.most_momentum -
         (s.most_momentum - s.least_momentum) * CycleShare(s, iteration);
}

// DeepSpeed's last_batch_iteration when that step is taken: -1 at the first.
int64_t IterationOf(int64_t step) { return step - 2; }

}  // namespace

double LearningRateAt(const LearningRateSchedule& schedule, int64_t step) {
  const int64_t iteration = IterationOf(step);
  switch (schedule.kind) {
    case Schedule::Kind::kConstant:
      return schedule.base;
    case Schedule::Kind::kWarmup:
    case Schedule::Kind::kWarmupDecay:
      return Warmup(schedule, iteration);
    case Schedule::Kind::kWarmupCosine:
      return WarmupCosine(schedule, iteration);
    case Schedule::Kind::kRangeTest:
      return RangeTest(schedule, iteration);
    case Schedule::Kind::kOneCycle:
      return OneCycle(schedule, iteration);
  }
  return schedule.base;
}

AdamOptions AdamAt(const LearningRateSchedule& schedule, int64_t step,
                   AdamOptions adam) {
  adam.learning_rate = LearningRateAt(schedule, step);
  if (schedule.kind == Schedule::Kind::kOneCycle && schedule.cycles_momentum) {
    adam.beta1 = CycledMomentum(schedule, IterationOf(step));
    adam.beta2 = 0.99;
  }
  return adam;
}

}  // namespace terrace
