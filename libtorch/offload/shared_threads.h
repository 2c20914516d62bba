// The threads that all optimizers of this process share which keep their state
// in memory. A program may have hundreds of such optimizers, one to each
// parameter.
//
// This is process-wide state, the only one here: the threads share the
// machine's processors, and no caller of torch's signature could hand them on.
// No threads are owned here: the last optimizer ends them.
#pragma once

#include "absl/status/statusor.h"
#include "terrace/thread_pool.h"

namespace terrace {

// Returns the threads of this number that a caller in this process still holds,
// or else new ones. Errors are those of ThreadPool::Create. Thread-safe. A
// forked child has threads of its own.
absl::StatusOr<ThreadPool> SharedThreads(int threads);

}  // namespace terrace
