#include "libtorch/offload/shared_threads.h"

#include <atomic>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/threads/pool_threads.h"

namespace terrace {
namespace {

struct Pools {
  const Process process;
  Mutex mutex;
  // The key is the number of threads that was asked for.
  std::map<int, std::weak_ptr<PoolThreads>> pools ABSL_GUARDED_BY(mutex);
};

// A forked child leaves its parent's pools behind, whose lock may be held by a
// thread that the child does not have.
Pools& PoolsOfThisProcess() {
  static std::atomic<Pools*> current = nullptr;
  // Pairs with the exchange below, which publishes the pools that it made.
  Pools* pools = current.load(std::memory_order_acquire);
  while (pools == nullptr || !pools->process.IsCurrent()) {
    auto made = std::make_unique<Pools>();
    if (current.compare_exchange_strong(pools, made.get(),
                                        std::memory_order_acq_rel)) {
      return *made.release();
    }
  }
  return *pools;
}

}  // namespace

absl::StatusOr<ThreadPool> SharedThreads(int threads) {
  Pools& pools = PoolsOfThisProcess();
  MutexLock lock(pools.mutex);
  std::weak_ptr<PoolThreads>& pool = pools.pools[threads];
  ThreadPool shared(pool.lock());
  if (shared.valid()) return shared;
  TERRACE_ASSIGN_OR_RETURN(shared, ThreadPool::Create(threads));
  pool = shared.threads();
  return shared;
}

}  // namespace terrace
