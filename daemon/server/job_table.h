// The sessions of all jobs' processes. Who asks for memory is admitted by its
// quotas and has a session, which a thread of its own serves; what that has
// taken is given back once it has ended.
//
// A table belongs to one thread; descriptor() is readable where sessions have
// ended, which Reap looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/config/daemon_config.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/job_session.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/links/job_links.h"
#include "daemon/server/user_table.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/packet_socket.h"
#include "daemon/wire/wake_event.h"

namespace terrace {

class JobTable {
 public:
  // Its connection ends with it.
  struct Ended {
    Peer peer;
    absl::Status how;  // as JobSession has it
    std::unique_ptr<JobSession> session;
  };

  // ResourceExhausted: there is no descriptor or thread.
  // `users` outlives the table, which ends connections there.
  static absl::StatusOr<std::unique_ptr<JobTable>> Create(
      const DaemonConfig& config, UserTable* users);
  // Waits until all have ended.
  ~JobTable();

  // Charges what the process asks for. Unavailable: all end. ResourceExhausted:
  // beyond a quota, of memory or of arenas (names limit and use);
  // InvalidArgument: the version is another, or what is asked for is none.
  absl::Status Admit(const Peer& peer, const Hello& hello);
  // What was admitted begins: a session answers the process from here on.
  // ResourceExhausted: there is no descriptor or thread, and nothing is
  // charged any more.
  absl::Status Begin(PacketSocket socket, const Peer& peer, uint64_t sequence,
                     const Hello& hello);
  // Frees what has ended, and its connection.
  std::vector<Ended> Reap();
  // Frees the memory of processes that held on to it and have gone since.
  void Sweep();
  // All are to end soon, and nobody else is admitted.
  void EndAll();

  // With the users that the table has.
  void SetLimits(const DaemonConfig& config);
  const TierLedger& ledger() const { return *ledger_; }
  // By user and name; with what they have of tiers.
  std::vector<DaemonStatus::Job> All() const;
  size_t size() const { return sessions_.size(); }
  // With processes that hold on to memory of what has ended.
  size_t connections() const { return sessions_.size() + holders_.size(); }
  // For poll(2) and epoll(7) alone.
  int descriptor() const { return shared_->ended.descriptor(); }

 private:
  struct Use {
    JobName name;
    int64_t memory_bytes = 0;
  };
  // What sessions' threads have.
  struct Shared {
    explicit Shared(WakeEvent event) : ended(std::move(event)) {}
    const WakeEvent ended;
    Mutex mutex;
    std::vector<std::pair<int64_t, JobSession::Ended>> gone
        ABSL_GUARDED_BY(mutex);
  };
  struct Entry {
    Peer peer;
    Use use;
    OwnDescriptor process;  // a pidfd; none: it has gone
    std::unique_ptr<JobSession> session;
  };
  // A process that has memory though its session has ended.
  struct Holder {
    Use use;
    OwnDescriptor process;
    OwnDescriptor memory;
  };

  JobTable(JobTiers tiers, std::unique_ptr<TierLedger> ledger,
           std::unique_ptr<JobLinks> links, DaemonConfig config,
           UserTable* users, WakeEvent event);

  // Its connection counts no more, either.
  void Give(const Use& use);
  absl::Status CheckArenas(const JobName& name) const;

  const JobTiers tiers_;
  const std::unique_ptr<TierLedger> ledger_;
  const std::unique_ptr<JobLinks> links_;
  UserTable& users_;
  DaemonConfig config_;
  const std::shared_ptr<Shared> shared_;
  int64_t next_ = 0;
  std::map<int64_t, Entry> sessions_;
  std::vector<Holder> holders_;
  bool ends_ = false;
};

}  // namespace terrace
