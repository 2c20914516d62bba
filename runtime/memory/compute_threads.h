// The pool of threads that a Runtime's kernels run on.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "tiers/memory/topology.h"

namespace terrace {

// 0 threads: one for each processor. Errors as ComputeThreads::Create.
absl::StatusOr<std::unique_ptr<Executor>> MakeComputeThreads(
    int threads, const Topology& topology);

}  // namespace terrace
