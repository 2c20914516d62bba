// The threads that all optimizers of this process share which keep their state
// in memory: a program may have hundreds of them, one to each parameter.
//
// This is process-wide state, the only one here: what it shares is the
// machine's processors, and no caller of torch's signature could hand it on.
// It owns nothing: the last optimizer ends the threads.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "terrace/memory_runtime.h"

namespace terrace {

// Those of that number that a caller in this process still holds, or else new
// ones; errors as ComputeThreads::Create. Thread-safe; a forked child has its
// own.
absl::StatusOr<std::shared_ptr<ComputeThreads>> SharedThreads(int threads);

}  // namespace terrace
