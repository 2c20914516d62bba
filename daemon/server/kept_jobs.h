// What a daemon before this one had for processes that live still, until each
// of them goes on with it, waits for it no more, or has gone. It stays charged
// meanwhile. What is given back goes on a thread of its own, as files and
// memory may take long.
//
// It belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/jobs/image/kept_job.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

class KeptJobs {
 public:
  // Whose growth is refused later is told so.
  using SinkOf =
      std::function<RefusalSink(const Peer& peer, const JobName& name)>;

  // `tiers` outlives it.
  KeptJobs(const JobTiers& tiers, SinkOf sink_of)
      : tiers_(tiers), sink_of_(std::move(sink_of)) {}
  // What nobody went on with stays kept, for the next daemon.
  ~KeptJobs();
  KeptJobs(const KeptJobs&) = delete;
  KeptJobs& operator=(const KeptJobs&) = delete;

  // Takes what a store had, by names; waits until `deadline`, by SystemClock(),
  // for what is under way on their disks. What cannot be had is dropped: the
  // answer is why.
  std::vector<absl::Status> Open(std::map<std::string, OwnDescriptor> files,
                                 absl::Time deadline);

  // FailedPrecondition: nothing is kept by that token; PermissionDenied: it is
  // another process's.
  absl::Status Check(const Peer& peer, const JobToken& token) const;
  // Of what was checked.
  KeptJob Take(const JobToken& token);
  // What the process could not go on with now.
  void PutBack(KeptJob job);
  // Gives back what processes had that have gone, or that wait no more. Their
  // memory stays where they may have it pinned, until they have gone.
  void Sweep();
  // Their memory, of those that may go on.
  std::vector<TierClaim> Claims() const;
  size_t size() const { return jobs_.size(); }
  // Memories of that job, or of the user's, without a name.
  int64_t CountOf(uid_t uid, std::optional<std::string> job) const;

 private:
  struct Kept {
    KeptJob job;
    absl::Time until;      // its process waits no longer
    bool is_over = false;  // and it has its memory alone
  };

  using Jobs = std::map<std::string, Kept>;  // by key

  Jobs::const_iterator Find(const JobToken& token) const;
  void Add(KeptJob job);
  void Drop(const std::vector<std::string>& names) const;
  void GiveBack(KeptJob job);
  void EndDisks(Kept& kept);
  void Run(const std::function<void()>& give);

  const JobTiers& tiers_;
  const SinkOf sink_of_;
  Jobs jobs_;
  std::vector<std::thread> ends_;  // of what is given back
};

}  // namespace terrace
