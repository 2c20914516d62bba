// What the command line may say where --config has the parameters on NVMe.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// InvalidArgument: a flag that is for parameters in memory.
absl::Status CheckParameterPlace(const std::set<std::string>& given,
                                 const Flags& flags);

}  // namespace train_gpt
