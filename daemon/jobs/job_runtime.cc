#include "daemon/jobs/job_runtime.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "daemon/jobs/charged_disk_file.h"
#include "runtime/local_parts.h"

namespace terrace {
namespace {

class JobCharge final : public Charge {
 public:
  JobCharge(TierLedger& ledger, JobName job, std::string tier,
            RefusalSink on_refusal)
      : ledger_(ledger),
        job_(std::move(job)),
        tier_(std::move(tier)),
        on_refusal_(std::move(on_refusal)) {}
  absl::Status Take(int64_t bytes) override {
    return ledger_.Take(job_, tier_, bytes);
  }
  void Give(int64_t bytes) override { ledger_.Give(job_, tier_, bytes); }
  void NoteRefused(const absl::Status& why) override { on_refusal_(why); }

 private:
  TierLedger& ledger_;
  const JobName job_;
  const std::string tier_;
  const RefusalSink on_refusal_;
};

}  // namespace

int64_t MemoryBytesOf(const Hello& hello) {
  constexpr int64_t kMost = INT64_MAX / 4;
  return RoundUp(std::min(hello.memory_bytes, kMost), kBlockBytes);
}

JobAddresses AddressesOf(const JobTiers& tiers, const JobName& job,
                         const Hello& hello) {
  // One group that is larger than that beyond its budget does without.
  constexpr int64_t kMostSpill = int64_t{64} << 30;
  const int64_t most = tiers.ledger->MostOf(job, TierName(tiers.memory));
  return {.growth_bytes = std::min(hello.growth_bytes, most),
          .spill_bytes = std::min(most, kMostSpill)};
}

absl::StatusOr<JobRuntime> MakeJobRuntime(const JobTiers& tiers,
                                          const JobName& job,
                                          const Hello& hello,
                                          RuntimeLoops& loops,
                                          const RefusalSink& on_refusal) {
  Options options;
  options.tiers.push_back(tiers.memory);
  options.tiers.front().budget_bytes = hello.memory_bytes;
  options.tiers.insert(options.tiers.end(), tiers.below.begin(),
                       tiers.below.end());
  const JobAddresses addresses = AddressesOf(tiers, job, hello);
  options.host_growth_bytes = addresses.growth_bytes;
  options.eviction = hello.eviction;
  options.prefetch = hello.prefetch;
  options.thread_pool = tiers.pool->LendTo(loops.session());
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts,
                           PartsOf(options, addresses.spill_bytes));
  std::vector<std::string> disks;
  for (size_t i = 0; i < parts.paths.size(); ++i) {
    LocalPath& path = parts.paths[i];
    disks.push_back(TierName(tiers.below[i]));
    path.file =
        MakeChargedDiskFile(std::move(path.file),
                            std::make_unique<JobCharge>(
                                *tiers.ledger, job, disks.back(), on_refusal));
    path.link = tiers.links->LinkOf(disks.back(), job.uid, job.job);
  }
  parts.engine = tiers.links->Paced(std::move(parts.engine), disks);
  JobRuntime made;
  made.memory = std::make_shared<JobMemory>(
      *parts.arena,
      std::make_unique<JobCharge>(*tiers.ledger, job, TierName(tiers.memory),
                                  on_refusal));
  parts.spill = made.memory;
  TERRACE_ASSIGN_OR_RETURN(made.runtime, loops.Start(std::move(parts)));
  return made;
}

absl::StatusOr<std::unique_ptr<LocalRuntime>> StartDaemonRuntime(
    Options options, const ChecksumPool& pool, RuntimeLoops& loops) {
  options.thread_pool = pool.LendTo(loops.session());
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts, PartsOf(options));
  return loops.Start(std::move(parts));
}

}  // namespace terrace
