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
#include "absl/types/span.h"
#include "base/mutex.h"
#include "daemon/config/daemon_config.h"
#include "daemon/jobs/job_name.h"

namespace terrace {

// "uid 1000", "the job 'night' of uid 1000".
std::string JobText(const JobName& job);

// What a process wants of a tier in the end, and what it has of that.
struct TierClaim {
  JobName job;
  int64_t bytes = 0;
  int64_t charged_bytes = 0;
};

class TierLedger {
 public:
  // `names`: of the configuration's users, as UidsOf has them.
  TierLedger(DaemonConfig config, std::map<uid_t, std::string> names)
      : config_(std::move(config)), names_(std::move(names)) {}

  // ResourceExhausted, which names the tier, the bytes, the limit that they
  // exceed and what is taken of it; nothing is taken then.
  absl::Status Take(const JobName& job, const std::string& tier, int64_t bytes);
  // Of the same, what a quota says, whatever others have.
  absl::Status CheckQuotas(const JobName& job, const std::string& tier,
                           int64_t bytes) const;
  void Give(const JobName& job, const std::string& tier, int64_t bytes);
  // What was taken from another daemon before, whatever the limits are now.
  void Add(const JobName& job, const std::string& tier, int64_t bytes);

  // Another configuration holds from here on; what is taken stays so.
  void SetLimits(DaemonConfig config, std::map<uid_t, std::string> names);

  int64_t UsedOf(const std::string& tier) const;
  // What the job could take now.
  int64_t RoomOf(const JobName& job, const std::string& tier) const;
  // What each of those may keep if all are to have their shares
  // (lending/fair_shares.h): of what is left beside all that is taken and
  // nobody's claim.
  std::vector<int64_t> SharesOf(const std::string& tier,
                                absl::Span<const TierClaim> claims) const;
  // What the job may have at most, whatever others have: by its quota, its
  // user's and the tier's budget.
  int64_t MostOf(const JobName& job, const std::string& tier) const;
  // By tier's name.
  std::map<std::string, int64_t> UseOf(const JobName& job) const;

 private:
  using Uses = std::map<JobName, int64_t>;

  struct Sums {
    int64_t all = 0;
    int64_t of_user = 0;
    int64_t of_job = 0;
  };

  Sums SumsOf(const JobName& job, const std::string& tier) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t BudgetOf(const std::string& tier) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckHost(const JobName& job, const std::string& tier,
                         int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOwn(const JobName& job, const std::string& tier,
                        int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  DaemonConfig config_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Uses> uses_ ABSL_GUARDED_BY(mutex_);  // by tier's name
};

}  // namespace terrace
