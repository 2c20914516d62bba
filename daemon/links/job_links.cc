#include "daemon/links/job_links.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/config/user_names.h"

namespace terrace {
namespace {

// As aio/queue/in_flight_limit.h has it.
constexpr int64_t kGrainBytes = 64 << 10;
constexpr int64_t kLeastBytes = 512 << 10;

// A limit that adapts does so while more waits than it lets in; of a pace it is
// known what that is.
IoQueueOptions QueueOptions(int64_t pace) {
  IoQueueOptions options;
  if (pace == 0) return options;
  const double wanted = static_cast<double>(pace) *
                        absl::ToDoubleSeconds(options.in_flight_latency);
  options.in_flight_bytes =
      std::clamp(RoundDown(static_cast<int64_t>(wanted), kGrainBytes),
                 kLeastBytes, options.in_flight_bytes);
  return options;
}

}  // namespace

JobLinks::JobLinks(DaemonConfig config, std::map<uid_t, std::string> names)
    : config_(std::move(config)), names_(std::move(names)) {
  MutexLock lock(mutex_);
  const int64_t pace = config_.service.pace_bytes_per_second;
  for (const TierSpec& each : config_.TierSpecs()) {
    if (each.kind != TierKind::kDisk) continue;
    Disk& disk = disks_[TierName(each)];
    disk.link = std::make_unique<SharedLink>(QueueOptions(pace), SystemClock());
    if (pace == 0) continue;
    disk.pace = std::make_shared<PacedDevice>(PaceOptions{pace, pace});
  }
}

JoinLink JobLinks::LinkOf(const std::string& tier, uid_t uid,
                          const std::string& job) {
  SharedLink* const link = disks_.at(tier).link.get();
  return [this, link,
          whose = SharedLink::Job{uid, job}](std::function<void()> wake) {
    return link->Join(whose, WeightsOf(whose), std::move(wake));
  };
}

std::unique_ptr<IoEngine> JobLinks::Paced(
    std::unique_ptr<IoEngine> engine,
    const std::vector<std::string>& tiers) const {
  std::vector<std::shared_ptr<PacedDevice>> devices;
  for (const std::string& each : tiers) {
    if (const auto& pace = disks_.at(each).pace; pace != nullptr) {
      devices.push_back(pace);
    }
  }
  if (devices.empty()) return engine;
  return MakePacedEngine(std::move(engine), std::move(devices), SystemClock());
}

void JobLinks::SetWeights(DaemonConfig config,
                          std::map<uid_t, std::string> names) {
  {
    MutexLock lock(mutex_);
    config_ = std::move(config);
    names_ = std::move(names);
  }
  for (const auto& [tier, disk] : disks_) {
    disk.link->SetWeights(
        [this](const SharedLink::Job& job) { return WeightsOf(job); });
  }
}

SharedLink::Weights JobLinks::WeightsOf(const SharedLink::Job& job) const {
  MutexLock lock(mutex_);
  const std::string user = UserIn(names_, job.user);
  return {static_cast<int>(config_.OfUser(user).weight_count()),
          static_cast<int>(config_.OfJob(user, job.name).weight_count())};
}

}  // namespace terrace
