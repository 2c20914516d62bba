// What an optimizer keeps from step to step: its parameters, how their state is
// cut, what of it is held, and how many steps it has seen.
//
// Plain values; one thread at a time.
#pragma once

#include <vector>

#include "optimizer/chunks/chunk_table.h"
#include "optimizer/state/step_counts.h"
#include "terrace/optimizer.h"

namespace terrace {

struct OptimizerState {
  std::vector<ParameterSpec> specs;
  OptimizerPlan plan;
  ChunkTable chunks;
  StepCounts counts;
};

}  // namespace terrace
