#include "daemon/jobs/checksum_pool.h"

#include <functional>

#include "base/executor.h"
#include "base/status_macros.h"
#include "base/threads/own_loop.h"
#include "base/threads/pool_threads.h"
#include "runtime/memory/compute_threads.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

// Hands tasks on, each with the word for whom it is.
class LentThreads final : public Executor {
 public:
  LentThreads(ThreadPool threads, int64_t session)
      : threads_(std::move(threads)), session_(session) {}

  int parallelism() const override {
    return ExecutorOf(threads_).parallelism();
  }

 private:
  void Queue(std::function<void()> task, Lane lane) override {
    ExecutorOf(threads_).Run(
        [task = std::move(task), session = session_]() mutable {
          OwnLoop::SetServed(session);
          task();
          task = nullptr;
          OwnLoop::SetServed(0);
        },
        lane);
  }

  const ThreadPool threads_;
  const int64_t session_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChecksumPool>> ChecksumPool::Create(
    LoopTable& loops) {
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  std::vector<WatchedLoop> watched;
  std::vector<std::shared_ptr<Heartbeat>> heartbeats;
  for (size_t i = 0; i < topology.cpus.size(); ++i) {
    watched.push_back(
        loops.Add({.kind = "checksums", .number = static_cast<int>(i)}));
    heartbeats.push_back(watched.back().shared_heartbeat());
  }
  auto own = std::make_shared<PoolLoops>(std::move(heartbeats));
  TERRACE_ASSIGN_OR_RETURN(ThreadPool threads,
                           MakeComputeThreads(0, topology, own));
  return std::unique_ptr<ChecksumPool>(
      new ChecksumPool(std::move(watched), std::move(own), std::move(threads)));
}

std::vector<Heartbeat*> ChecksumPool::heartbeats() const {
  std::vector<Heartbeat*> all;
  for (const WatchedLoop& each : watched_) all.push_back(&each.heartbeat());
  return all;
}

ThreadPool ChecksumPool::LendTo(int64_t session) const {
  return MakeThreadPool(std::make_shared<LentThreads>(threads_, session),
                        threads_.nearest_node());
}

}  // namespace terrace
