#include "daemon/jobs/tier_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/config/user_names.h"

namespace terrace {
namespace {

// Of the quota; negative: it says nothing of that tier.
int64_t LimitOf(const Quota& quota, const std::string& tier) {
  const auto found = quota.tier_bytes.find(tier);
  return found == quota.tier_bytes.end() ? -1 : found->second.count;
}

absl::Status CheckLimit(const std::string& tier, const std::string& whose,
                        int64_t bytes, int64_t used, int64_t limit) {
  if (limit < 0 || bytes <= limit - used) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(tier, ": ", bytes, " bytes are too many: ", whose, " has ",
                   used, ", and the limit is ", limit));
}

}  // namespace

std::string JobText(const JobName& job) {
  if (job.job.empty()) return absl::StrCat("uid ", job.uid);
  return absl::StrCat("the job '", job.job, "' of uid ", job.uid);
}

absl::Status TierLedger::Take(const JobName& job, const std::string& tier,
                              int64_t bytes) {
  MutexLock lock(mutex_);
  TERRACE_RETURN_IF_ERROR(Check(job, tier, bytes));
  uses_[tier][job] += bytes;
  return absl::OkStatus();
}

absl::Status TierLedger::Check(const JobName& job, const std::string& tier,
                               int64_t bytes) const {
  int64_t all = 0;
  int64_t of_user = 0;
  int64_t of_job = 0;
  const auto found = uses_.find(tier);
  if (found != uses_.end()) {
    for (const auto& [name, used] : found->second) {
      all += used;
      if (name.uid == job.uid) of_user += used;
      if (name == job) of_job = used;
    }
  }
  const std::string user = UserIn(names_, job.uid);
  const DaemonConfig::Tier* const own = FindTier(config_.tiers, tier);
  const int64_t budget = own == nullptr ? 0 : own->spec.budget_bytes;
  TERRACE_RETURN_IF_ERROR(
      CheckLimit(tier, "all of this host's jobs together", bytes, all, budget));
  TERRACE_RETURN_IF_ERROR(CheckLimit(tier, absl::StrCat("the user ", user),
                                     bytes, of_user,
                                     LimitOf(config_.OfUser(user), tier)));
  return CheckLimit(tier, JobText(job), bytes, of_job,
                    LimitOf(config_.OfJob(user, job.job), tier));
}

void TierLedger::Give(const JobName& job, const std::string& tier,
                      int64_t bytes) {
  MutexLock lock(mutex_);
  Uses& uses = uses_[tier];
  const auto found = uses.find(job);
  TERRACE_CHECK(found != uses.end() && found->second >= bytes);
  found->second -= bytes;
  if (found->second == 0) uses.erase(found);
}

void TierLedger::Add(const JobName& job, const std::string& tier,
                     int64_t bytes) {
  if (bytes == 0) return;
  MutexLock lock(mutex_);
  uses_[tier][job] += bytes;
}

void TierLedger::SetLimits(DaemonConfig config,
                           std::map<uid_t, std::string> names) {
  MutexLock lock(mutex_);
  // Tiers are those of the start.
  config.tiers = config_.tiers;
  config_ = std::move(config);
  names_ = std::move(names);
}

int64_t TierLedger::UsedOf(const std::string& tier) const {
  MutexLock lock(mutex_);
  const auto found = uses_.find(tier);
  if (found == uses_.end()) return 0;
  int64_t all = 0;
  for (const auto& [name, used] : found->second) all += used;
  return all;
}

int64_t TierLedger::MostOf(const JobName& job, const std::string& tier) const {
  MutexLock lock(mutex_);
  const std::string user = UserIn(names_, job.uid);
  const DaemonConfig::Tier* const own = FindTier(config_.tiers, tier);
  int64_t most = own == nullptr ? 0 : own->spec.budget_bytes;
  for (const int64_t limit : {LimitOf(config_.OfUser(user), tier),
                              LimitOf(config_.OfJob(user, job.job), tier)}) {
    if (limit >= 0) most = std::min(most, limit);
  }
  return most;
}

std::map<std::string, int64_t> TierLedger::UseOf(const JobName& job) const {
  MutexLock lock(mutex_);
  std::map<std::string, int64_t> use;
  for (const auto& [tier, uses] : uses_) {
    const auto found = uses.find(job);
    if (found != uses.end()) use[tier] = found->second;
  }
  return use;
}

}  // namespace terrace
