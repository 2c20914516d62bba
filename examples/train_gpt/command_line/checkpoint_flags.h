// Which of --save, --save-every and --resume go together, and with what.
#pragma once

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// InvalidArgument, in one line.
absl::Status CheckCheckpoints(const Flags& flags);

}  // namespace train_gpt
