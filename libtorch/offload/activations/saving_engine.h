// LibTorch's engine of autograd, which asks the scopes of the thread what is
// done with a tensor that it saves. The one part of this that a process has
// once, as LibTorch's engine is the process's.
#pragma once

#include "absl/status/status.h"

namespace terrace {

// From here on, and for good, the process has that engine. No backward may be
// under way the first time; again: nothing. Unimplemented: its engine is
// neither LibTorch's own nor this one, as where Python has loaded LibTorch.
absl::Status InstallSavingEngine();

}  // namespace terrace
