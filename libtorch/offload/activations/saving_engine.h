// LibTorch's engine of autograd, which asks the scopes of the thread what is
// done with a tensor that it saves. It is the one part of activations that a
// process has once, as LibTorch's engine is the process's.
#pragma once

#include "absl/status/status.h"

namespace terrace {

// From here on, and for good, the process has that engine. No backward may be
// under way in the first call; further calls do nothing. Returns Unimplemented
// when the process's engine is neither LibTorch's own nor this one, as where
// Python has loaded LibTorch.
absl::Status InstallSavingEngine();

}  // namespace terrace
