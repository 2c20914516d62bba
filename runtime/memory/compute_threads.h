// The pool of threads that a Runtime's kernels run on.
#pragma once

#include "absl/status/statusor.h"
#include "terrace/thread_pool.h"
#include "tiers/memory/topology.h"

namespace terrace {

// 0 threads: one for each processor. Errors as ThreadPool::Create.
absl::StatusOr<ThreadPool> MakeComputeThreads(int threads,
                                              const Topology& topology);

}  // namespace terrace
