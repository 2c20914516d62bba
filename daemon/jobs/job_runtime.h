// The runtime that the daemon has for one process of a job: of the host's
// tiers, within the job's quota, with memory that the process can map.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/jobs/checksum_pool.h"
#include "daemon/jobs/job_memory.h"
#include "daemon/jobs/runtime_loops.h"
#include "daemon/jobs/tier_ledger.h"
#include "daemon/links/job_links.h"
#include "daemon/wire/job_messages.h"
#include "runtime/local_runtime.h"
#include "terrace/options.h"
#include "terrace/tier.h"

namespace terrace {

// What all jobs share. It outlives their runtimes.
struct JobTiers {
  TierSpec memory;              // with the host's budget
  std::vector<TierSpec> below;  // disks
  const ChecksumPool* pool = nullptr;
  TierLedger* ledger = nullptr;
  JobLinks* links = nullptr;
};

// What such a process takes of the memory at its start: whole pages.
int64_t MemoryBytesOf(const Hello& hello);

// Addresses of its memory file, beyond what it takes at its start: as far as it
// may grow, and for what spills over.
struct JobAddresses {
  int64_t growth_bytes = 0;
  int64_t spill_bytes = 0;
};
JobAddresses AddressesOf(const JobTiers& tiers, const JobName& job,
                         const Hello& hello);

struct JobRuntime {
  std::shared_ptr<JobMemory> memory;  // the runtime's spill
  std::unique_ptr<LocalRuntime> runtime;
};

// What a quota has no room for that the process asks for later. On any thread
// of the runtime, which it does not block.
using RefusalSink = std::function<void(const absl::Status& why)>;

// The memory of its start is charged already, and its loops are watched. Errors
// are Runtime::Create's.
absl::StatusOr<JobRuntime> MakeJobRuntime(const JobTiers& tiers,
                                          const JobName& job,
                                          const Hello& hello,
                                          RuntimeLoops& loops,
                                          const RefusalSink& on_refusal);

// The daemon's own, of any tiers. Errors are Runtime::Create's.
absl::StatusOr<std::unique_ptr<LocalRuntime>> StartDaemonRuntime(
    Options options, const ChecksumPool& pool, RuntimeLoops& loops);

}  // namespace terrace
