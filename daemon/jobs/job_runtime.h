// The runtime that the daemon has for one process of a job: of the host's
// tiers, within the job's quota, with memory that the process can map.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/jobs/checksum_pool.h"
#include "daemon/jobs/image/descriptor_store.h"
#include "daemon/jobs/image/job_image.h"
#include "daemon/jobs/image/kept_job.h"
#include "daemon/jobs/job_memory.h"
#include "daemon/jobs/lending/room_waits.h"
#include "daemon/jobs/media/medium_source.h"
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
  // Far and persistent memory, from there; the faster ones first.
  std::vector<TierSpec> mapped;
  const MediumSource* media = nullptr;
  const ChecksumPool* pool = nullptr;
  TierLedger* ledger = nullptr;
  JobLinks* links = nullptr;
  RoomWaits* waits = nullptr;        // for memory that others lend
  DescriptorStore* store = nullptr;  // null: nothing outlives the daemon
};

// Whose a runtime is.
struct JobProcess {
  JobName job;
  pid_t process = 0;
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
  // The runtime's keeper; null: it ends with the daemon.
  std::unique_ptr<JobImage> image;
  // What the runtime goes on with, once its process has claimed it.
  std::optional<RuntimeImage> kept;
  std::unique_ptr<LocalRuntime> runtime;
};

// What a quota has no room for that the process asks for later. On any thread
// of the runtime, which it does not block.
using RefusalSink = std::function<void(const absl::Status& why)>;

// The memory of its start is charged already, and its loops are watched. Errors
// are Runtime::Create's.
absl::StatusOr<JobRuntime> MakeJobRuntime(const JobTiers& tiers,
                                          const JobProcess& whose,
                                          const Hello& hello,
                                          RuntimeLoops& loops,
                                          const RefusalSink& on_refusal);
// Of the memory of its start, what its runtime had lent.
int64_t LentBytesOf(const KeptJob& kept);
// What is kept takes again what it had, whatever the limits are now: its memory
// and spill, and its files, each with a charge of its own.
void ChargeKept(const JobTiers& tiers, KeptJob& kept,
                const RefusalSink& on_refusal);
// The memory and spill are given back; the files give theirs as they go.
void GiveKept(const JobTiers& tiers, const KeptJob& kept);
// One that goes on with what is kept, all of which is charged: the memory of
// its start stays so, also after an error.
absl::StatusOr<JobRuntime> MakeKeptRuntime(const JobTiers& tiers, KeptJob kept,
                                           RuntimeLoops& loops,
                                           const RefusalSink& on_refusal);

// The daemon's own, of memory, disks and what is mapped. Errors are
// Runtime::Create's.
absl::StatusOr<std::unique_ptr<LocalRuntime>> StartDaemonRuntime(
    Options options, std::vector<LocalMapped> mapped, const ChecksumPool& pool,
    RuntimeLoops& loops);

}  // namespace terrace
