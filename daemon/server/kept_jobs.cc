#include "daemon/server/kept_jobs.h"

#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/threads/own_thread.h"
#include "daemon/jobs/image/other_process.h"
#include "tiers/memory/host_arena.h"

namespace terrace {
namespace {

// More than a process waits for, which looks now and then.
constexpr absl::Duration kMorePatience = absl::Seconds(1);
// Of each job, whatever those before it have taken.
constexpr absl::Duration kLeastPatience = absl::Seconds(1);

}  // namespace

// Their files and memory are the next daemon's: nothing of them is removed.
KeptJobs::~KeptJobs() {
  for (std::thread& each : ends_) each.join();
  for (auto& [key, each] : jobs_) {
    for (std::unique_ptr<DiskFile>& disk : each.job.disks) {
      static_cast<void>(disk.release());
    }
    for (std::unique_ptr<Medium>& medium : each.job.media) {
      static_cast<void>(medium.release());
    }
  }
}

std::vector<absl::Status> KeptJobs::Open(
    std::map<std::string, OwnDescriptor> files, absl::Time deadline) {
  std::set<std::string> keys;
  for (const auto& [name, file] : files) keys.insert(KeyOf(name));
  keys.erase("");
  std::vector<absl::Status> lost;
  for (const std::string& key : keys) {
    std::map<std::string, OwnDescriptor> own;
    std::vector<std::string> names;
    for (auto& [name, file] : files) {
      if (KeyOf(name) != key) continue;
      names.push_back(name);
      own.emplace(name, std::move(file));
    }
    absl::StatusOr<KeptJob> job = OpenKeptJob(
        key, std::move(own), {tiers_.below, tiers_.mapped, tiers_.media},
        std::max(deadline, SystemClock().Now() + kLeastPatience));
    if (!job.ok()) {
      Drop(names);
      lost.push_back(job.status());
      continue;
    }
    const ImageFacts facts = job->file.facts();
    ChargeKept(tiers_, *job,
               sink_of_({.uid = facts.job.uid,
                         .pid = static_cast<pid_t>(facts.process)},
                        facts.job));
    Add(*std::move(job));
  }
  return lost;
}

void KeptJobs::Add(KeptJob job) {
  const absl::Duration patience =
      absl::Milliseconds(job.file.facts().asked.patience_ms);
  const std::string key = job.key;
  jobs_.emplace(key,
                Kept{.job = std::move(job),
                     .until = SystemClock().Now() + patience + kMorePatience});
}

void KeptJobs::Drop(const std::vector<std::string>& names) const {
  for (const std::string& each : names) tiers_.store->Drop(each);
}

absl::Status KeptJobs::Check(const Peer& peer, const JobToken& token) const {
  const auto found = Find(token);
  if (found == jobs_.end()) {
    return absl::FailedPreconditionError(
        "the daemon has nothing of the runtime that the process had");
  }
  const ImageFacts facts = found->second.job.file.facts();
  const bool is_its =
      facts.job.uid == peer.uid && facts.process == peer.pid &&
      StartOf(peer.pid) == std::optional<uint64_t>(facts.start_time);
  if (is_its) return absl::OkStatus();
  return absl::PermissionDeniedError("the token is another process's");
}

KeptJobs::Jobs::const_iterator KeptJobs::Find(const JobToken& token) const {
  return absl::c_find_if(jobs_, [&token](const auto& each) {
    return !each.second.is_over && each.second.job.file.Accepts(token);
  });
}

KeptJob KeptJobs::Take(const JobToken& token) {
  KeptJob job = std::move(jobs_.extract(Find(token)).mapped().job);
  job.token = token;
  return job;
}

void KeptJobs::PutBack(KeptJob job) { Add(std::move(job)); }

std::vector<TierClaim> KeptJobs::Claims() const {
  std::vector<TierClaim> claims;
  for (const auto& [key, kept] : jobs_) {
    if (kept.is_over) continue;
    const ImageFacts facts = kept.job.file.facts();
    const int64_t bytes = MemoryBytesOf(facts.asked);
    claims.push_back({facts.job, bytes, bytes - LentBytesOf(kept.job)});
  }
  return claims;
}

int64_t KeptJobs::CountOf(uid_t uid, std::optional<std::string> job) const {
  return absl::c_count_if(jobs_, [&](const auto& each) {
    const JobName name = each.second.job.file.facts().job;
    return name.uid == uid && (!job.has_value() || name.job == *job);
  });
}

void KeptJobs::Sweep() {
  const absl::Time now = SystemClock().Now();
  for (auto each = jobs_.begin(); each != jobs_.end();) {
    Kept& kept = each->second;
    const bool is_over = !kept.is_over && now >= kept.until;
    if (HasGone(kept.job.process) || (is_over && !kept.job.HasPins())) {
      GiveBack(std::move(kept.job));
      each = jobs_.erase(each);
      continue;
    }
    if (is_over) EndDisks(kept);
    ++each;
  }
}

void KeptJobs::EndDisks(Kept& kept) {
  kept.is_over = true;
  Drop(NamesOf(kept.job.key, kept.job.file.facts()));
  Run([disks = std::make_shared<std::vector<std::unique_ptr<DiskFile>>>(
           std::move(kept.job.disks)),
       media = std::make_shared<std::vector<std::unique_ptr<Medium>>>(
           std::move(kept.job.media))] {
    disks->clear();
    media->clear();
  });
}

void KeptJobs::Run(const std::function<void()>& give) {
  try {
    ends_.push_back(StartThread("terrace-kept", give));
  } catch (const std::system_error&) {
    give();
  }
}

void KeptJobs::GiveBack(KeptJob job) {
  Drop(NamesOf(job.key, job.file.facts()));
  auto owned = std::make_shared<KeptJob>(std::move(job));
  Run([owned, &tiers = tiers_] {
    HostArena::EmptyMemoryFile(owned->memory);
    GiveKept(tiers, *owned);
    owned->disks.clear();
    owned->media.clear();
  });
}

}  // namespace terrace
