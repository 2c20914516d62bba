// What the daemon owns of its host from its start: the directories of its
// tiers, which no other daemon has, and a Runtime over all tiers of the
// configuration, with a little of each memory, so that what cannot be had is
// found then, and what killed jobs left there goes. Jobs have runtimes of
// their own. A thread asks this Runtime how it is: how old the last answer is
// says whether the Runtime's mover turns.
//
// The class is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "daemon/config/daemon_config.h"
#include "daemon/jobs/checksum_pool.h"
#include "daemon/jobs/media/medium_source.h"
#include "daemon/jobs/runtime_loops.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/links/path_lock.h"
#include "daemon/watch/loop_table.h"
#include "terrace/runtime.h"

namespace terrace {

class Holdings {
 public:
  // How often the Runtime is asked.
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);

  struct Report {
    absl::Time at;  // when it was answered, by SystemClock()
    Stats stats;
  };

  // What it is made with, and outlived by.
  struct Parts {
    const ChecksumPool& pool;
    const MediumSource& media;
    const TierLedger& ledger;
    std::shared_ptr<LoopTable> loops;
  };

  // Errors are those of Runtime::Create, which name the tier;
  // ResourceExhausted: the host has no such memory, or there is no thread to be
  // had; Unavailable: another daemon has a directory. Paths are directories, as
  // CheckPaths has found. What jobs have already stands in the ledger. The
  // loops are watched from then on; `tell` is called in each turn of the
  // thread.
  static absl::StatusOr<std::unique_ptr<Holdings>> Open(
      const DaemonConfig& config, Parts parts, std::function<void()> tell);
  // Ends the Runtime as its destructor does, if it is not closed.
  ~Holdings();
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;

  // Asks the thread whether it turns; it wakes by itself. One thread's.
  void AskLoop(absl::Time now) { loop_.heartbeat().Ask(now); }

  // The newest there is.
  std::shared_ptr<const Report> report() const;
  // As Runtime::Close has it, by SystemClock(). A mover that has stopped does
  // not answer, and then this does not return: who must go on calls it in a
  // thread.
  absl::Status Close(absl::Time deadline);

 private:
  Holdings(std::vector<PathLock> locks, RuntimeLoops loops, WatchedLoop loop,
           std::function<void()> tell, std::unique_ptr<LocalRuntime> runtime);
  void Ask();
  void AskAgainAndAgain();
  void EndThread();

  const std::vector<PathLock> locks_;
  RuntimeLoops loops_;
  const WatchedLoop loop_;  // of the thread
  const std::function<void()> tell_;
  const std::unique_ptr<LocalRuntime> runtime_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Report> report_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace
