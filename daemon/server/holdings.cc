#include "daemon/server/holdings.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Holdings>> Holdings::Open(
    const DaemonConfig& config) {
  Options options;
  options.tiers = config.TierSpecs();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                           Runtime::Create(options));
  try {
    return std::unique_ptr<Holdings>(new Holdings(std::move(runtime)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the daemon's watch: ", error.what()));
  }
}

Holdings::Holdings(std::unique_ptr<Runtime> runtime)
    : runtime_(std::move(runtime)) {
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
    Ask();
  }
}

std::shared_ptr<const Holdings::Report> Holdings::report() const {
  MutexLock lock(mutex_);
  return report_;
}

absl::Status Holdings::Close(absl::Time deadline) {
  EndThread();
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
