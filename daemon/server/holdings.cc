#include "daemon/server/holdings.h"

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/jobs/job_runtime.h"
#include "daemon/jobs/media/job_media.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

constexpr int64_t kOwnMemoryBytes = 1 << 20;

// That all jobs together could have it, beside what they have already, as far
// as the host can say now.
absl::Status CheckMemory(const std::vector<TierSpec>& tiers,
                         const TierLedger& ledger) {
  int64_t all = 0;
  for (const TierSpec& each : tiers) {
    if (each.kind != TierKind::kDram && each.kind != TierKind::kFar) continue;
    const int64_t used = ledger.UsedOf(TierName(each));
    all += std::max<int64_t>(each.budget_bytes - used, 0);
  }
  const int64_t available = AvailableMemoryBytes();
  if (all <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("dram and far: ", all, " bytes for jobs: only ", available,
                   " bytes of memory are available to this process"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Holdings>> Holdings::Open(
    const DaemonConfig& config, Parts parts, std::function<void()> tell) {
  const std::vector<TierSpec> tiers = config.TierSpecs();
  TERRACE_RETURN_IF_ERROR(CheckMemory(tiers, parts.ledger));
  Options options;
  std::vector<TierSpec> mapped;
  std::vector<PathLock> locks;
  for (const TierSpec& each : tiers) {
    if (each.kind == TierKind::kDisk || each.kind == TierKind::kPmem) {
      TERRACE_ASSIGN_OR_RETURN(PathLock lock, PathLock::Take(each.place));
      locks.push_back(std::move(lock));
    }
    const bool is_mapped =
        each.kind == TierKind::kFar || each.kind == TierKind::kPmem;
    (is_mapped ? mapped : options.tiers).push_back(each);
    if (each.kind != TierKind::kDram) continue;
    int64_t& budget = options.tiers.back().budget_bytes;
    budget = std::min(budget, kOwnMemoryBytes);
  }
  RuntimeLoops own(parts.loops, /*process=*/0, /*session=*/0);
  TERRACE_ASSIGN_OR_RETURN(std::vector<LocalMapped> media,
                           OpenOwnMedia(parts.media, mapped, parts.ledger));
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<LocalRuntime> runtime,
      StartDaemonRuntime(std::move(options), std::move(media), parts.pool,
                         own));
  try {
    return std::unique_ptr<Holdings>(new Holdings(
        std::move(locks), std::move(own), parts.loops->Add({"asker"}),
        std::move(tell), std::move(runtime)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the daemon's watch: ", error.what()));
  }
}

Holdings::Holdings(std::vector<PathLock> locks, RuntimeLoops loops,
                   WatchedLoop loop, std::function<void()> tell,
                   std::unique_ptr<LocalRuntime> runtime)
    : locks_(std::move(locks)),
      loops_(std::move(loops)),
      loop_(std::move(loop)),
      tell_(std::move(tell)),
      runtime_(std::move(runtime)) {
  Ask();
  thread_ = StartThread("terrace-watch", [this] { AskAgainAndAgain(); });
}

Holdings::~Holdings() { EndThread(); }

void Holdings::Ask() {
  Stats stats = runtime_->GetStats();
  auto report = std::make_shared<const Report>(
      Report{.at = SystemClock().Now(), .stats = std::move(stats)});
  MutexLock lock(mutex_);
  report_ = std::move(report);
}

void Holdings::AskAgainAndAgain() {
  while (true) {
    {
      MutexLock lock(mutex_);
      // An answer too many does no harm.
      if (!ends_) changed_.WaitFor(mutex_, kPeriod);
      if (ends_) return;
    }
    loops_.Ask(*runtime_, SystemClock().Now());
    Ask();
    loop_.heartbeat().Beat();
    tell_();
  }
}

std::shared_ptr<const Holdings::Report> Holdings::report() const {
  MutexLock lock(mutex_);
  return report_;
}

absl::Status Holdings::Close(absl::Time deadline) {
  EndThread();
  loop_.heartbeat().SetAway(true);
  return runtime_->Close(SystemClock().ToWall(deadline));
}

void Holdings::EndThread() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace terrace
