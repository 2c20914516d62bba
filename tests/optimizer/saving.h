// An optimizer's state as a checkpoint takes and gives it: in memory, range by
// range.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"

namespace terrace {

inline std::vector<OffloadedOptimizer::StateKind> StateKindsOf(
    const ParameterSpec& spec) {
  using Kind = OffloadedOptimizer::StateKind;
  if (spec.dtype == DType::kFloat32)
    return {Kind::kFirstMoment, Kind::kSecondMoment};
  return {Kind::kMaster, Kind::kFirstMoment, Kind::kSecondMoment};
}

// What a checkpoint holds besides the parameters.
struct Saved {
  int64_t step = 0;
  std::vector<int64_t> steps;
  std::map<std::pair<int, OffloadedOptimizer::StateKind>, std::vector<float>>
      arrays;
};

// Ranges of `range` elements, all kinds of a range in turn.
inline Saved Save(OffloadedOptimizer& optimizer, int64_t range) {
  const Time deadline = absl::Now() + absl::Seconds(60);
  Saved saved;
  saved.step = optimizer.step();
  saved.steps.assign(optimizer.parameter_steps().begin(),
                     optimizer.parameter_steps().end());
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ParameterSpec& spec = optimizer.parameters()[i];
    if (saved.steps[i] == 0) continue;
    for (int64_t from = 0; from < spec.count; from += range) {
      const int64_t count = std::min(range, spec.count - from);
      for (OffloadedOptimizer::StateKind kind : StateKindsOf(spec)) {
        auto& array = saved.arrays[{static_cast<int>(i), kind}];
        array.resize(static_cast<size_t>(from + count));
        const absl::Status status = optimizer.ReadState(
            static_cast<int>(i), kind, from,
            absl::MakeSpan(array).subspan(static_cast<size_t>(from)), deadline);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
  return saved;
}

inline void Load(const Saved& saved, int64_t range,
                 OffloadedOptimizer& optimizer) {
  const Time deadline = absl::Now() + absl::Seconds(60);
  ASSERT_TRUE(optimizer.Reset(deadline).ok());
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const ParameterSpec& spec = optimizer.parameters()[i];
    if (saved.steps[i] == 0) continue;
    for (int64_t from = 0; from < spec.count; from += range) {
      const int64_t count = std::min(range, spec.count - from);
      for (OffloadedOptimizer::StateKind kind : StateKindsOf(spec)) {
        const absl::Status status = optimizer.WriteState(
            static_cast<int>(i), kind, from,
            absl::MakeConstSpan(saved.arrays.at({static_cast<int>(i), kind}))
                .subspan(static_cast<size_t>(from), static_cast<size_t>(count)),
            deadline);
        ASSERT_TRUE(status.ok()) << status;
      }
    }
  }
  ASSERT_TRUE(optimizer.SetSteps(saved.step, saved.steps).ok());
}

}  // namespace terrace
