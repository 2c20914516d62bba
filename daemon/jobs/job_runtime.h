// The runtime that the daemon has for one process of a job: of the host's
// tiers, within the job's quota, with memory that the process can map.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/links/job_links.h"
#include "daemon/wire/job_messages.h"
#include "runtime/local_runtime.h"
#include "terrace/thread_pool.h"
#include "terrace/tier.h"

namespace terrace {

// What all jobs share. It outlives their runtimes.
struct JobTiers {
  TierSpec memory;              // with the host's budget
  std::vector<TierSpec> below;  // disks
  ThreadPool pool;              // for checksums
  TierLedger* ledger = nullptr;
  JobLinks* links = nullptr;
};

// What such a process takes of the memory: whole pages, and what it may grow by
// too, as nobody could keep it from that.
int64_t MemoryBytesOf(const Hello& hello);

// Its memory is charged already. Errors are Runtime::Create's.
absl::StatusOr<std::unique_ptr<LocalRuntime>> MakeJobRuntime(
    const JobTiers& tiers, const JobName& job, const Hello& hello);

}  // namespace terrace
