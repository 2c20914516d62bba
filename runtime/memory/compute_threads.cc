#include "runtime/memory/compute_threads.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "kernels/pool_executor.h"

namespace terrace {

// Pinned only where it has a thread for every processor. A smaller pool would
// always take the first ones, and so would that of the next job.
absl::StatusOr<ThreadPool> MakeComputeThreads(
    int threads, const Topology& topology, std::shared_ptr<PoolLoops> loops) {
  if (threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat(threads, " threads"));
  }
  const int all = static_cast<int>(topology.cpus.size());
  const int count = threads > 0 ? threads : all;
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Executor> executor,
      MakePoolExecutor(count,
                       count < all ? absl::Span<const int>() : topology.cpus,
                       std::move(loops)));
  return MakeThreadPool(std::move(executor),
                        NearestNode(topology, topology.cpus));
}

}  // namespace terrace
