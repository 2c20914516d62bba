// What the command line may say beside --daemon.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// InvalidArgument: a flag that is the daemon's to decide, or --job without a
// daemon.
absl::Status CheckDaemon(const std::set<std::string>& given,
                         const Flags& flags);

}  // namespace train_gpt
