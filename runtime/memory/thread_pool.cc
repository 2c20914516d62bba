#include "terrace/thread_pool.h"

#include "base/status_macros.h"
#include "base/threads/pool_threads.h"
#include "runtime/memory/compute_threads.h"

namespace terrace {

absl::StatusOr<ThreadPool> ThreadPool::Create(int threads) {
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  return MakeComputeThreads(threads, topology);
}

int ThreadPool::size() const { return ExecutorOf(*this).parallelism(); }

int ThreadPool::nearest_node() const { return threads_->nearest_node(); }

}  // namespace terrace
