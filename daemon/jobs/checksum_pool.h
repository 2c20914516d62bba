// The threads that compute the checksums of all jobs' tensors, as many as the
// host has processors, and each one a watched loop. A piece of work is a
// tensor; one of more than 64 MiB answers in between (kernels/checksum.h).
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/threads/pool_loops.h"
#include "daemon/watch/loop_table.h"
#include "terrace/thread_pool.h"

namespace terrace {

class ChecksumPool {
 public:
  // ResourceExhausted: no more threads; Unavailable: the machine cannot be
  // read.
  static absl::StatusOr<std::unique_ptr<ChecksumPool>> Create(LoopTable& loops);
  ChecksumPool(const ChecksumPool&) = delete;
  ChecksumPool& operator=(const ChecksumPool&) = delete;

  // The threads as one session has them (LoopTable::NewSession): one that stops
  // within its work is the session's. 0: nobody's.
  ThreadPool LendTo(int64_t session) const;

  // For who asks whether they turn; Wake wakes them all.
  std::vector<Heartbeat*> heartbeats() const;
  void Wake() const { loops_->wake.WakeAll(); }

 private:
  ChecksumPool(std::vector<WatchedLoop> watched,
               std::shared_ptr<PoolLoops> loops, ThreadPool threads)
      : watched_(std::move(watched)),
        loops_(std::move(loops)),
        threads_(std::move(threads)) {}

  const std::vector<WatchedLoop> watched_;
  const std::shared_ptr<PoolLoops> loops_;
  const ThreadPool threads_;
};

}  // namespace terrace
