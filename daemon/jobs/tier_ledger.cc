#include "daemon/jobs/tier_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/config/user_names.h"
#include "daemon/jobs/lending/fair_shares.h"

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
  TERRACE_RETURN_IF_ERROR(CheckHost(job, tier, bytes));
  TERRACE_RETURN_IF_ERROR(CheckOwn(job, tier, bytes));
  uses_[tier][job] += bytes;
  return absl::OkStatus();
}

absl::Status TierLedger::CheckQuotas(const JobName& job,
                                     const std::string& tier,
                                     int64_t bytes) const {
  MutexLock lock(mutex_);
  return CheckOwn(job, tier, bytes);
}

TierLedger::Sums TierLedger::SumsOf(const JobName& job,
                                    const std::string& tier) const {
  Sums sums;
  const auto found = uses_.find(tier);
  if (found == uses_.end()) return sums;
  for (const auto& [name, used] : found->second) {
    sums.all += used;
    if (name.uid == job.uid) sums.of_user += used;
    if (name == job) sums.of_job = used;
  }
  return sums;
}

int64_t TierLedger::BudgetOf(const std::string& tier) const {
  const DaemonConfig::Tier* const own = FindTier(config_.tiers, tier);
  return own == nullptr ? 0 : own->spec.budget_bytes;
}

absl::Status TierLedger::CheckHost(const JobName& job, const std::string& tier,
                                   int64_t bytes) const {
  return CheckLimit(tier, "all of this host's jobs together", bytes,
                    SumsOf(job, tier).all, BudgetOf(tier));
}

absl::Status TierLedger::CheckOwn(const JobName& job, const std::string& tier,
                                  int64_t bytes) const {
  const Sums sums = SumsOf(job, tier);
  const std::string user = UserIn(names_, job.uid);
  TERRACE_RETURN_IF_ERROR(CheckLimit(tier, absl::StrCat("the user ", user),
                                     bytes, sums.of_user,
                                     LimitOf(config_.OfUser(user), tier)));
  return CheckLimit(tier, JobText(job), bytes, sums.of_job,
                    LimitOf(config_.OfJob(user, job.job), tier));
}

int64_t TierLedger::RoomOf(const JobName& job, const std::string& tier) const {
  MutexLock lock(mutex_);
  const Sums sums = SumsOf(job, tier);
  const std::string user = UserIn(names_, job.uid);
  int64_t room = BudgetOf(tier) - sums.all;
  const int64_t of_user = LimitOf(config_.OfUser(user), tier);
  const int64_t of_job = LimitOf(config_.OfJob(user, job.job), tier);
  if (of_user >= 0) room = std::min(room, of_user - sums.of_user);
  if (of_job >= 0) room = std::min(room, of_job - sums.of_job);
  return std::max(int64_t{0}, room);
}

std::vector<int64_t> TierLedger::SharesOf(
    const std::string& tier, absl::Span<const TierClaim> claims) const {
  MutexLock lock(mutex_);
  // What is nobody's claim: growth, what is beyond a budget, what is kept.
  Uses beside;
  if (const auto found = uses_.find(tier); found != uses_.end()) {
    beside = found->second;
  }
  for (const TierClaim& each : claims) beside[each.job] -= each.charged_bytes;
  int64_t left = BudgetOf(tier);
  std::map<uid_t, int64_t> of_users;
  for (const auto& [name, bytes] : beside) {
    left -= bytes;
    of_users[name.uid] += bytes;
  }
  const auto limit = [&tier](const Quota& quota, int64_t used) {
    const int64_t most = LimitOf(quota, tier);
    return ShareLimit{
        .most_bytes = most < 0 ? INT64_MAX : std::max<int64_t>(0, most - used),
        .weight = quota.weight_count()};
  };
  std::vector<ShareClaim> wanted;
  for (const TierClaim& each : claims) {
    const std::string user = UserIn(names_, each.job.uid);
    wanted.push_back(
        {.job = each.job,
         .bytes = each.bytes,
         .of_user = limit(config_.OfUser(user), of_users[each.job.uid]),
         .of_job = limit(config_.OfJob(user, each.job.job), beside[each.job])});
  }
  return FairShares(left, wanted);
}

void TierLedger::Give(const JobName& job, const std::string& tier,
                      int64_t bytes) {
  if (bytes == 0) return;
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
  int64_t most = BudgetOf(tier);
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
