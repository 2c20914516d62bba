#include "runtime/memory/compute_threads.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "kernels/pool_executor.h"
#include "terrace/memory_runtime.h"

namespace terrace {
namespace {

class PoolThreads final : public ComputeThreads {
 public:
  PoolThreads(std::unique_ptr<Executor> executor, int nearest_node)
      : executor_(std::move(executor)), nearest_node_(nearest_node) {}
  ~PoolThreads() override {
    // A forked child has no threads that could be joined.
    if (!process_.IsCurrent()) static_cast<void>(executor_.release());
  }

  Executor& executor() override { return *executor_; }
  int nearest_node() const override { return nearest_node_; }

 private:
  const Process process_;
  std::unique_ptr<Executor> executor_;
  const int nearest_node_;
};

}  // namespace

// Pinned only where it has a thread for every processor. A smaller pool would
// always take the first ones, and so would that of the next job.
absl::StatusOr<std::unique_ptr<Executor>> MakeComputeThreads(
    int threads, const Topology& topology) {
  if (threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat(threads, " threads"));
  }
  const int all = static_cast<int>(topology.cpus.size());
  const int count = threads > 0 ? threads : all;
  return MakePoolExecutor(
      count, count < all ? absl::Span<const int>() : topology.cpus);
}

absl::StatusOr<std::shared_ptr<ComputeThreads>> ComputeThreads::Create(
    int threads) {
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                           MakeComputeThreads(threads, topology));
  return std::make_shared<PoolThreads>(std::move(executor),
                                       NearestNode(topology, topology.cpus));
}

}  // namespace terrace
