// The pool of threads that a Runtime's kernels run on.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/threads/pool_loops.h"
#include "terrace/thread_pool.h"
#include "tiers/memory/topology.h"

namespace terrace {

// 0 threads: one for each processor. `loops` as MakePoolExecutor has them.
// Errors as ThreadPool::Create.
absl::StatusOr<ThreadPool> MakeComputeThreads(
    int threads, const Topology& topology,
    std::shared_ptr<PoolLoops> loops = nullptr);

}  // namespace terrace
