// One run of train_gpt, from parsed flags to the last line printed.
#pragma once

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// Prints to standard output. Exceptions of LibTorch pass through.
absl::Status Run(const Flags& flags);

}  // namespace train_gpt
