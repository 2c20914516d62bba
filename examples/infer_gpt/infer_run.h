// The whole of what the command line asks for.
#pragma once

#include "absl/status/status.h"
#include "examples/infer_gpt/infer_flags.h"

namespace infer_gpt {

// LibTorch's exceptions pass through.
absl::Status Run(Flags flags);

}  // namespace infer_gpt
