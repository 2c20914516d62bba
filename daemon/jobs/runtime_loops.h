// The loops of one runtime's threads, so that a daemon knows whether they turn:
// its mover, and a background thread for each tier below memory: disks first.
//
// It belongs to the thread that the runtime does, which asks them in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "daemon/watch/loop_table.h"
#include "runtime/local_runtime.h"

namespace terrace {

class RuntimeLoops {
 public:
  // `process`: the job's, which the runtime is for, and the session's number; 0
  // of the daemon's own.
  RuntimeLoops(std::shared_ptr<LoopTable> table, int64_t process,
               int64_t session)
      : table_(std::move(table)), process_(process), session_(session) {}

  // Starts the runtime, watched. Errors are LocalRuntime::Start's.
  absl::StatusOr<std::unique_ptr<LocalRuntime>> Start(LocalRuntimeParts parts);
  // Asks the loops of that runtime, which lives, and wakes them.
  void Ask(LocalRuntime& runtime, absl::Time now);
  int64_t session() const { return session_; }

 private:
  struct Background {
    WatchedLoop loop;
    Executor* thread = nullptr;  // the runtime's
  };

  const std::shared_ptr<LoopTable> table_;
  const int64_t process_;
  const int64_t session_;
  WatchedLoop mover_;
  std::vector<Background> background_;
};

}  // namespace terrace
