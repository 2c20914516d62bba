// The flags of the optimizer and of its learning rate, and which of them go
// together.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flag_spec.h"

namespace train_gpt {

std::vector<FlagSpec> OptimizerFlags();

// `given` are the names on the command line. InvalidArgument, in one line.
absl::Status CheckOptimizer(const std::set<std::string>& given,
                            const Flags& flags);

}  // namespace train_gpt
