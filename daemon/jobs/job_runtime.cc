#include "daemon/jobs/job_runtime.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "daemon/jobs/charged_disk_file.h"
#include "daemon/jobs/image/other_process.h"
#include "daemon/jobs/media/job_media.h"
#include "daemon/wire/lending_patience.h"
#include "runtime/local_parts.h"

namespace terrace {
namespace {

class JobCharge : public Charge {
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

// Of the memory, which others may lend.
class MemoryCharge final : public JobCharge {
 public:
  MemoryCharge(const JobTiers& tiers, const JobName& job, int64_t session,
               RefusalSink on_refusal)
      : JobCharge(*tiers.ledger, job, TierName(tiers.memory),
                  std::move(on_refusal)),
        tiers_(tiers),
        job_(job),
        session_(session) {}
  absl::Status Await(int64_t bytes) override {
    absl::Status taken = Take(bytes);
    if (taken.ok()) return taken;
    return tiers_.waits->Await(
        {.job = job_,
         .bytes = bytes,
         .session = session_,
         .grows = true,
         .deadline = SystemClock().Now() + LendingPatience(bytes)});
  }

 private:
  const JobTiers& tiers_;
  const JobName job_;
  const int64_t session_;
};

ChargeOf ChargesOf(const JobTiers& tiers, const JobName& job,
                   const RefusalSink& on_refusal) {
  return [=, &ledger = *tiers.ledger](const TierSpec& tier) {
    return std::make_unique<JobCharge>(ledger, job, TierName(tier), on_refusal);
  };
}

Options OptionsOf(const JobTiers& tiers, const Hello& hello,
                  const RuntimeLoops& loops) {
  Options options;
  options.tiers.push_back(tiers.memory);
  options.tiers.insert(options.tiers.end(), tiers.below.begin(),
                       tiers.below.end());
  options.eviction = hello.eviction;
  options.prefetch = hello.prefetch;
  options.thread_pool = tiers.pool->LendTo(loops.session());
  return options;
}

// Unavailable, ResourceExhausted: it cannot be kept.
absl::StatusOr<std::unique_ptr<JobImage>> KeepImage(
    const JobTiers& tiers, const JobProcess& whose, const Hello& hello,
    const JobAddresses& addresses, const LocalRuntimeParts& parts) {
  const std::optional<uint64_t> start = StartOf(whose.process);
  if (!start.has_value()) {
    return absl::UnavailableError("when its process began is not told");
  }
  ImageFacts facts;
  facts.job = whose.job;
  facts.process = whose.process;
  facts.start_time = *start;
  facts.asked = hello;
  facts.asked.growth_bytes = addresses.growth_bytes;
  facts.spill_bytes = addresses.spill_bytes;
  JobImage::Kept kept{.memory = parts.arena->memory_file()};
  for (size_t i = 0; i < parts.paths.size(); ++i) {
    std::optional<KeptFile> file = parts.paths[i].file->Keep();
    if (!file.has_value()) {
      return absl::UnavailableError(absl::StrCat("the lock of its file on ",
                                                 tiers.below[i].place,
                                                 " cannot be shared"));
    }
    kept.locks.push_back(std::move(file->lock));
    facts.disks.push_back({tiers.below[i].place, *std::move(file)});
  }
  TERRACE_ASSIGN_OR_RETURN(facts.mapped, KeepJobMedia(tiers, parts.mapped));
  for (ImageFacts::Mapped& each : facts.mapped) {
    kept.media.push_back(std::move(each.medium.file));
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<JobImage> image,
                           JobImage::Make(*tiers.store, facts, kept));
  image->file().SetUsedBytes(static_cast<int64_t>(parts.arena->bytes().size()));
  return image;
}

absl::StatusOr<JobRuntime> StartJobRuntime(const JobTiers& tiers,
                                           const JobName& job,
                                           LocalRuntimeParts parts,
                                           JobRuntime made, RuntimeLoops& loops,
                                           const RefusalSink& on_refusal) {
  std::vector<std::string> disks;
  for (size_t i = 0; i < parts.paths.size(); ++i) {
    LocalPath& path = parts.paths[i];
    disks.push_back(TierName(tiers.below[i]));
    path.link = tiers.links->LinkOf(disks.back(), job.uid, job.job);
  }
  parts.engine = tiers.links->Paced(std::move(parts.engine), disks);
  made.memory = std::make_shared<JobMemory>(
      *parts.arena,
      std::make_unique<MemoryCharge>(tiers, job, loops.session(), on_refusal),
      /*is_lent=*/made.kept.has_value() && !made.kept->lent.empty());
  parts.spill = made.memory;
  parts.pages = made.memory;
  if (made.image != nullptr) parts.keeper = &made.image->keeper();
  TERRACE_ASSIGN_OR_RETURN(made.runtime, loops.Start(std::move(parts)));
  return made;
}

// What a kept runtime has of memory beside that of its start.
struct LaterBytes {
  int64_t growth = 0;
  int64_t spill = 0;
  int64_t all() const { return growth + spill; }
};

LaterBytes LaterBytesOf(const KeptJob& kept) {
  const int64_t used = kept.file.used_bytes();
  const Hello asked = kept.file.facts().asked;
  LaterBytes later{.growth = used - RoundDown(asked.memory_bytes, kBlockBytes)};
  for (const TensorImage& each : kept.image.tensors) {
    const CopyImage& memory = each.memory;
    const bool is_spilt = memory.tier != kNoTier && memory.extent.end() > used;
    if (is_spilt) later.spill += memory.extent.size_bytes;
  }
  return later;
}

int64_t KeptBytesOf(const KeptJob& kept) {
  return MemoryBytesOf(kept.file.facts().asked) - LentBytesOf(kept) +
         LaterBytesOf(kept).all();
}

absl::StatusOr<JobRuntime> StartKept(const JobTiers& tiers, KeptJob kept,
                                     const LaterBytes& later,
                                     RuntimeLoops& loops,
                                     const RefusalSink& on_refusal) {
  const ImageFacts facts = kept.file.facts();
  Options options = OptionsOf(tiers, facts.asked, loops);
  options.tiers.front().budget_bytes = kept.file.used_bytes();
  options.host_growth_bytes =
      RoundUp(facts.asked.growth_bytes, kBlockBytes) - later.growth;
  KeptParts parts_kept{std::move(kept.memory), std::move(kept.disks)};
  std::vector<LocalMapped> mapped = MappedOf(tiers, kept);
  JobRuntime made;
  made.kept = std::move(kept.image);
  made.image = JobImage::Reopen(*tiers.store, std::move(kept));
  TERRACE_ASSIGN_OR_RETURN(
      LocalRuntimeParts parts,
      PartsOf(options, facts.spill_bytes, std::move(parts_kept)));
  parts.mapped = std::move(mapped);
  return StartJobRuntime(tiers, facts.job, std::move(parts), std::move(made),
                         loops, on_refusal);
}

}  // namespace

int64_t LentBytesOf(const KeptJob& kept) {
  int64_t bytes = 0;
  for (const Extent& each : kept.image.lent) bytes += each.size_bytes;
  return bytes;
}

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
                                          const JobProcess& whose,
                                          const Hello& hello,
                                          RuntimeLoops& loops,
                                          const RefusalSink& on_refusal) {
  const JobAddresses addresses = AddressesOf(tiers, whose.job, hello);
  Options options = OptionsOf(tiers, hello, loops);
  options.tiers.front().budget_bytes = hello.memory_bytes;
  options.host_growth_bytes = addresses.growth_bytes;
  // First: what cannot be had is found before memory is populated.
  TERRACE_ASSIGN_OR_RETURN(std::vector<LocalMapped> mapped,
                           OpenJobMedia(tiers, whose.job));
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts,
                           PartsOf(options, addresses.spill_bytes));
  parts.mapped = std::move(mapped);
  JobRuntime made;
  if (tiers.store != nullptr) {
    absl::StatusOr<std::unique_ptr<JobImage>> image =
        KeepImage(tiers, whose, hello, addresses, parts);
    if (image.ok()) {
      made.image = *std::move(image);
    } else {
      on_refusal(
          Reworded(image.status(), absl::StrCat("it goes with this daemon: ",
                                                image.status().message())));
    }
  }
  for (size_t i = 0; i < parts.paths.size(); ++i) {
    std::unique_ptr<DiskFile>& file = parts.paths[i].file;
    file = MakeChargedDiskFile(
        std::move(file),
        std::make_unique<JobCharge>(*tiers.ledger, whose.job,
                                    TierName(tiers.below[i]), on_refusal));
  }
  ChargeMedia(parts.mapped, ChargesOf(tiers, whose.job, on_refusal));
  return StartJobRuntime(tiers, whose.job, std::move(parts), std::move(made),
                         loops, on_refusal);
}

void ChargeKept(const JobTiers& tiers, KeptJob& kept,
                const RefusalSink& on_refusal) {
  const ImageFacts facts = kept.file.facts();
  tiers.ledger->Add(facts.job, TierName(tiers.memory), KeptBytesOf(kept));
  for (size_t i = 0; i < kept.disks.size(); ++i) {
    const std::string tier = TierName(tiers.below[i]);
    std::unique_ptr<DiskFile>& file = kept.disks[i];
    tiers.ledger->Add(facts.job, tier, file->capacity_bytes());
    file = MakeChargedDiskFile(
        std::move(file), std::make_unique<JobCharge>(*tiers.ledger, facts.job,
                                                     tier, on_refusal));
  }
  ChargeKeptMedia(tiers, kept, ChargesOf(tiers, facts.job, on_refusal));
}

void GiveKept(const JobTiers& tiers, const KeptJob& kept) {
  tiers.ledger->Give(kept.file.facts().job, TierName(tiers.memory),
                     KeptBytesOf(kept));
}

absl::StatusOr<JobRuntime> MakeKeptRuntime(const JobTiers& tiers, KeptJob kept,
                                           RuntimeLoops& loops,
                                           const RefusalSink& on_refusal) {
  const JobName job = kept.file.facts().job;
  const LaterBytes later = LaterBytesOf(kept);
  absl::StatusOr<JobRuntime> made =
      StartKept(tiers, std::move(kept), later, loops, on_refusal);
  if (made.ok()) {
    made->memory->Restore(later.growth, later.spill);
  } else {
    tiers.ledger->Give(job, TierName(tiers.memory), later.all());
  }
  return made;
}

absl::StatusOr<std::unique_ptr<LocalRuntime>> StartDaemonRuntime(
    Options options, std::vector<LocalMapped> mapped, const ChecksumPool& pool,
    RuntimeLoops& loops) {
  options.thread_pool = pool.LendTo(loops.session());
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts, PartsOf(options));
  parts.mapped = std::move(mapped);
  return loops.Start(std::move(parts));
}

}  // namespace terrace
