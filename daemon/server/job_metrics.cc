// What a JobTable knows of its jobs' runtimes.
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "daemon/server/job_table.h"

namespace terrace {
namespace {

MetricsReport::JobTier& TierIn(MetricsReport::Job& job,
                               const std::string& tier) {
  const auto found = absl::c_find_if(
      job.tiers, [&tier](const auto& each) { return each.name == tier; });
  if (found != job.tiers.end()) return *found;
  return job.tiers.emplace_back(MetricsReport::JobTier{.name = tier});
}

// Nothing: anybody's is.
bool IsOf(const JobName& name, std::optional<uid_t> owner) {
  return !owner.has_value() || name.uid == *owner;
}

void AddFill(const Stats& stats, MetricsReport::Job& job) {
  for (const TierStats& each : stats.tiers) {
    MetricsReport::JobTier& tier = TierIn(job, each.name);
    tier.pinned_bytes += each.pinned_bytes;
    tier.dirty_bytes += each.dirty_bytes;
    tier.clean_bytes += each.clean_bytes;
    tier.is_degraded |= each.degraded;
  }
}

}  // namespace

void JobTable::AskLoops(absl::Time now) {
  for (auto& [number, entry] : sessions_) entry.session->AskLoops(now);
}

void JobTable::AskStats(std::optional<uid_t> owner, absl::Time now,
                        absl::Duration pause) {
  for (auto& [number, entry] : sessions_) {
    if (!IsOf(entry.use.name, owner)) continue;
    if (now - entry.asked.asked_stats() >= pause) entry.asked.AskStats(now);
  }
}

void JobTable::TakeStats() {
  for (auto& [number, entry] : sessions_) entry.asked.TakeStats();
}

int64_t JobTable::unanswered() const {
  return absl::c_count_if(sessions_, [](const auto& each) {
    return each.second.asked.is_unanswered();
  });
}

std::vector<MetricsReport::Job> JobTable::Metrics(
    std::optional<uid_t> owner) const {
  std::map<JobName, MetricsReport::Job> jobs;
  for (const auto& [number, entry] : sessions_) {
    if (!IsOf(entry.use.name, owner)) continue;
    MetricsReport::Job& job = jobs[entry.use.name];
    ++job.processes;
    AddFill(entry.asked.newest(), job);
    job.totals.Add(entry.asked.newest());
  }
  for (const Holder& each : holders_) {
    if (IsOf(each.use.name, owner)) jobs[each.use.name];
  }
  std::vector<MetricsReport::Job> all;
  for (auto& [name, job] : jobs) {
    job.uid = name.uid;
    job.name = name.job;
    TierIn(job, TierName(tiers_.memory));
    for (const TierSpec& each : tiers_.below) TierIn(job, TierName(each));
    std::map<std::string, int64_t> used = ledger_->UseOf(name);
    for (MetricsReport::JobTier& each : job.tiers) {
      each.counted_bytes = used[each.name];
      each.quota_bytes = ledger_->MostOf(name, each.name);
    }
    job.totals.Add(counts_.Of(name));
    all.push_back(std::move(job));
  }
  return all;
}

JobTotals JobTable::Totals() const {
  JobTotals totals = counts_.all();
  for (const auto& [number, entry] : sessions_)
    totals.Add(entry.asked.newest());
  return totals;
}

std::vector<DaemonStatus::Job> JobTable::JobsOf(
    std::optional<uid_t> owner) const {
  std::vector<DaemonStatus::Job> all;
  for (const MetricsReport::Job& each : Metrics(owner)) {
    DaemonStatus::Job& job = all.emplace_back();
    job.uid = each.uid;
    job.name = each.name;
    job.processes = static_cast<int32_t>(each.processes);
    for (const MetricsReport::JobTier& tier : each.tiers) {
      if (tier.counted_bytes == 0) continue;
      job.tiers.push_back({tier.name, tier.counted_bytes, tier.pinned_bytes,
                           tier.dirty_bytes, tier.clean_bytes});
    }
    for (const auto& [ends, link] : each.totals.links) {
      const bool is_up = ends.second == TierName(tiers_.memory);
      (is_up ? job.bytes_up : job.bytes_down) += link.bytes;
      job.stalled_seconds += link.seconds_blocked;
    }
  }
  return all;
}

std::optional<JobName> JobTable::OwnerOf(int64_t process) const {
  for (const auto& [number, entry] : sessions_) {
    if (entry.peer.pid == process) return entry.use.name;
  }
  return std::nullopt;
}

std::optional<int64_t> JobTable::NextSession(int64_t number,
                                             std::optional<uid_t> owner) const {
  for (auto each = sessions_.lower_bound(number); each != sessions_.end();
       ++each) {
    if (IsOf(each->second.use.name, owner)) return each->first;
  }
  return std::nullopt;
}

JobTable::Whose JobTable::WhoseIs(int64_t session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  return {found->second.use.name, found->second.peer.pid};
}

AskedRuntime* JobTable::RuntimeOf(int64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second.asked;
}

}  // namespace terrace
