// The far and persistent memory of a process of a job: a medium of its own of
// each such tier, which is charged to the job as it grows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/jobs/charge.h"
#include "daemon/jobs/image/image_file.h"
#include "daemon/jobs/image/kept_job.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/media/medium_source.h"
#include "daemon/jobs/tier_ledger.h"
#include "runtime/local_runtime.h"
#include "terrace/tier.h"

namespace terrace {

// What the process has of a tier is charged there.
using ChargeOf = std::function<std::unique_ptr<Charge>(const TierSpec& tier)>;

// Addresses of the daemon's own that such a process has for them: as far as the
// job's quotas let them grow.
int64_t MediaAddressBytes(const JobTiers& tiers, const JobName& job);

// Nothing is in them, nor charged. Errors are Runtime::Create's.
absl::StatusOr<std::vector<LocalMapped>> OpenJobMedia(const JobTiers& tiers,
                                                      const JobName& job);
// From here on they are charged as they grow.
void ChargeMedia(std::vector<LocalMapped>& mapped, const ChargeOf& charge);

// How the next daemon finds them again, with their descriptors; before they are
// charged. Unavailable: some cannot be kept.
absl::StatusOr<std::vector<ImageFacts::Mapped>> KeepJobMedia(
    const JobTiers& tiers, const std::vector<LocalMapped>& mapped);
// What is kept takes again what it has, whatever the limits are now.
void ChargeKeptMedia(const JobTiers& tiers, KeptJob& kept,
                     const ChargeOf& charge);
// Those of a runtime that goes on.
std::vector<LocalMapped> MappedOf(const JobTiers& tiers, KeptJob& kept);

// The daemon's own, with a block of each: what cannot be had is found so. What
// jobs have already stands in the ledger. ResourceExhausted also: all jobs
// together could not have it.
absl::StatusOr<std::vector<LocalMapped>> OpenOwnMedia(
    const MediumSource& media, absl::Span<const TierSpec> tiers,
    const TierLedger& ledger);

}  // namespace terrace
