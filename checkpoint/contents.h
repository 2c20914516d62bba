// What saving and loading agree on: which arrays a parameter's state has, and
// what a list of tensors must be like. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/checkpoint.h"
#include "terrace/optimizer.h"

namespace terrace {

struct StateArray {
  OffloadedOptimizer::StateKind kind;
  const char* suffix;  // of the parameter's name; PyTorch's words
};

inline constexpr StateArray kStateArrays[] = {
    {OffloadedOptimizer::StateKind::kMaster, ".master"},
    {OffloadedOptimizer::StateKind::kFirstMoment, ".exp_avg"},
    {OffloadedOptimizer::StateKind::kSecondMoment, ".exp_avg_sq"}};

// InvalidArgument: shapes or names that cannot be; or an optimizer (may be
// null) that has other parameters than those that name it.
absl::Status CheckTensors(absl::Span<const CheckpointTensor> tensors,
                          const OffloadedOptimizer* optimizer);

// InvalidArgument: one that has elements and no address of them.
absl::Status CheckAddresses(absl::Span<const CheckpointTensor> tensors);

}  // namespace terrace
