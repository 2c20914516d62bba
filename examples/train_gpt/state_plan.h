// What keeping the optimizer's state on disk will take, told before anything is
// made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "terrace/optimizer.h"
#include "terrace/options.h"
#include "terrace/zero_config.h"

namespace train_gpt {

struct OffloadPlan {
  terrace::Options runtime;
  std::vector<std::string> paths;  // of its disks
  terrace::OptimizerOptions optimizer;
  terrace::LearningRateSchedule schedule;
  terrace::OptimizerPlan plan;
  int64_t budget_bytes = 0;
  bool budget_raised = false;  // a share that is less than what works
  bool joined = false;         // parameters and gradients share the paths
  std::string scratch;         // --verify's directory; empty: none
  int64_t verify_bytes = 0;    // of its copy of the parameters
  std::string save;            // --save's directory; empty: none
  int64_t save_bytes = 0;      // at most, of what is there at one time
};

// Of flags with a budget. ResourceExhausted: one in bytes below the minimum,
// which the message names; a share is raised to it.
absl::StatusOr<OffloadPlan> PlanOffload(const Flags& flags);

// What a run prints of it: lines that say what is in memory, and what on disk
// and why.
std::string PlanText(const OffloadPlan& plan);

}  // namespace train_gpt
