// What the jobs of a host have of its tiers, to the byte, and what each may:
// the tier's budget over all, a user's quota, a job's. What is taken is given
// back by whoever took it.
//
// Thread-safe: disks grow on threads of their own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "daemon/config/daemon_config.h"

namespace terrace {

// Whose bytes they are. Jobs of one name are a user's own; "": all that have
// none.
struct JobName {
  uid_t uid = 0;
  std::string job;

  friend auto operator<=>(const JobName&, const JobName&) = default;
};

// "uid 1000", "the job 'night' of uid 1000".
std::string JobText(const JobName& job);

class TierLedger {
 public:
  // `names`: of the configuration's users, as UidsOf has them.
  TierLedger(DaemonConfig config, std::map<uid_t, std::string> names)
      : config_(std::move(config)), names_(std::move(names)) {}

  // ResourceExhausted, which names the tier, the bytes, the limit that they
  // exceed and what is taken of it; nothing is taken then.
  absl::Status Take(const JobName& job, const std::string& tier, int64_t bytes);
  void Give(const JobName& job, const std::string& tier, int64_t bytes);
  // What was taken from another daemon before, whatever the limits are now.
  void Add(const JobName& job, const std::string& tier, int64_t bytes);

  // Another configuration holds from here on; what is taken stays so.
  void SetLimits(DaemonConfig config, std::map<uid_t, std::string> names);

  int64_t UsedOf(const std::string& tier) const;
  // What the job may have at most, whatever others have: by its quota, its
  // user's and the tier's budget.
  int64_t MostOf(const JobName& job, const std::string& tier) const;
  // By tier's name.
  std::map<std::string, int64_t> UseOf(const JobName& job) const;

 private:
  using Uses = std::map<JobName, int64_t>;

  absl::Status Check(const JobName& job, const std::string& tier,
                     int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  DaemonConfig config_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Uses> uses_ ABSL_GUARDED_BY(mutex_);  // by tier's name
};

}  // namespace terrace
