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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/config/daemon_config.h"
#include "daemon/jobs/asked_runtime.h"
#include "daemon/jobs/checksum_pool.h"
#include "daemon/jobs/job_counts.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/job_session.h"
#include "daemon/jobs/lending/lending.h"
#include "daemon/jobs/refusal_notes.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/links/job_links.h"
#include "daemon/metrics/metrics_report.h"
#include "daemon/server/kept_jobs.h"
#include "daemon/server/user_table.h"
#include "daemon/watch/loop_pages.h"
#include "daemon/watch/loop_table.h"
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

  // What it is made with, and outlived by; the store may be null.
  struct Parts {
    UserTable* users = nullptr;  // connections end there
    const ChecksumPool* pool = nullptr;
    const MediumSource* media = nullptr;
    DescriptorStore* store = nullptr;
    std::shared_ptr<LoopTable> loops;
    std::shared_ptr<LoopPages> pages;
  };

  // ResourceExhausted: there is no descriptor or thread.
  static absl::StatusOr<std::unique_ptr<JobTable>> Create(
      const DaemonConfig& config, Parts parts);
  // Waits until all have ended.
  ~JobTable();

  enum class Memory : uint8_t { kCharged, kToCome };

  // Charges what the process asks for, unless it goes on with what is kept;
  // kToCome: others are to lend it first. Unavailable: all end; errors of
  // KeptJobs::Check; ResourceExhausted: beyond a quota, of memory or of arenas
  // (names limit and use); InvalidArgument: the version is another, or what is
  // asked for is none.
  absl::StatusOr<Memory> Admit(const Peer& peer, const Hello& hello);
  // What was admitted begins: a session answers the process from here on.
  // ResourceExhausted: there is no descriptor or thread, and nothing is
  // charged any more.
  absl::Status Begin(PacketSocket socket, const Peer& peer, uint64_t sequence,
                     const Hello& hello, Memory memory);
  // Of its sessions' memory.
  Lending& lending() { return lending_; }
  // Frees what has ended, and its connection.
  std::vector<Ended> Reap();
  // What processes were refused since the last call, as they grew: descriptor()
  // is readable where there is something.
  std::vector<RefusalNotes::Note> TakeRefusals();
  // Frees the memory of processes that held on to it and have gone since.
  void Sweep();
  // Asks the loops of all sessions whether they turn.
  void AskLoops(absl::Time now);
  // Asks the runtimes of that user, or all, for their Stats, but for those that
  // were asked less than `pause` ago. The answers come by and by: descriptor()
  // is readable where some have, and TakeStats takes them.
  void AskStats(std::optional<uid_t> owner, absl::Time now,
                absl::Duration pause);
  void TakeStats();
  // Runtimes that were asked and have not answered.
  int64_t unanswered() const;
  // What jobs have and have moved, as far as their runtimes have answered; and
  // what all have moved that there ever were.
  std::vector<MetricsReport::Job> Metrics(
      std::optional<uid_t> owner = std::nullopt) const;
  JobTotals Totals() const;
  // The first session from that number on, of that user's or of anyone's.
  std::optional<int64_t> NextSession(int64_t number,
                                     std::optional<uid_t> owner) const;
  struct Whose {
    JobName name;
    int64_t process = 0;  // 0: the session has ended
  };
  Whose WhoseIs(int64_t session) const;
  // What else may be asked of its runtime is answered as Stats are. Null: the
  // session has ended.
  AskedRuntime* RuntimeOf(int64_t session);
  // Nobody else is admitted; who is there goes on.
  void Drain() { drains_ = true; }
  // All are to end soon, and nobody else is admitted.
  void EndAll();

  // With the users that the table has.
  void SetLimits(const DaemonConfig& config);
  const TierLedger& ledger() const { return *ledger_; }
  // That user's, or all, by user and name; with what they have of tiers.
  std::vector<DaemonStatus::Job> JobsOf(std::optional<uid_t> owner) const;
  // Whose process it is that has a session; nothing: nobody's.
  std::optional<JobName> OwnerOf(int64_t process) const;
  size_t size() const { return sessions_.size(); }
  // What processes have not gone on with yet; opened before anybody is
  // admitted.
  KeptJobs& kept() { return kept_; }
  // With processes that hold on to memory of what has ended.
  size_t connections() const { return sessions_.size() + holders_.size(); }
  // For poll(2) and epoll(7) alone.
  int descriptor() const { return shared_->ended.descriptor(); }

 private:
  struct Use {
    JobName name;
    int64_t memory_bytes = 0;   // charged, but for what is lent
    int64_t address_bytes = 0;  // of the daemon's own
  };
  // What sessions' threads have.
  struct Shared {
    explicit Shared(WakeEvent event) : ended(std::move(event)) {}
    const WakeEvent ended;
    RefusalNotes refusals;
    RoomWaits waits{[this] { ended.Set(); }};
    Mutex mutex;
    std::vector<std::pair<int64_t, JobSession::Ended>> gone
        ABSL_GUARDED_BY(mutex);
  };
  struct GoesOnWith {
    explicit GoesOnWith(KeptJob taken)
        : job(std::move(taken)),
          memory(job->memory.Share()),
          has_pins(job->HasPins()) {}
    std::optional<KeptJob> job;  // until its runtime has it
    OwnDescriptor memory;        // of the same
    const bool has_pins;
  };
  struct Entry {
    Peer peer;
    Use use;
    OwnDescriptor process;             // a pidfd; none: it has gone
    std::shared_ptr<GoesOnWith> kept;  // null: nothing
    std::unique_ptr<JobSession> session;
    AskedRuntime asked;
  };
  // A process that has memory though its session has ended.
  struct Holder {
    Use use;
    OwnDescriptor process;
    OwnDescriptor memory;
  };

  JobTable(JobTiers tiers, std::unique_ptr<TierLedger> ledger,
           std::unique_ptr<JobLinks> links, DaemonConfig config, Parts parts,
           std::shared_ptr<Shared> shared);

  // Its connection counts no more, either.
  void Give(const Use& use);
  absl::Status CheckArenas(const JobName& name) const;

  const JobTiers tiers_;
  const std::unique_ptr<TierLedger> ledger_;
  const std::unique_ptr<JobLinks> links_;
  UserTable& users_;
  const std::shared_ptr<LoopTable> loops_;
  const std::shared_ptr<LoopPages> pages_;
  DaemonConfig config_;
  const std::shared_ptr<Shared> shared_;
  const KeptJobs::SinkOf sink_of_;  // for whose growth is refused
  int64_t next_ = 0;
  std::map<int64_t, Entry> sessions_;
  std::vector<Holder> holders_;
  KeptJobs kept_;
  Lending lending_;
  JobCounts counts_;
  bool drains_ = false;
  bool ends_ = false;
};

}  // namespace terrace
