#include "machine/profile/tuning.h"

#include <algorithm>
#include <set>

#include "absl/time/time.h"
#include "aio/io_paths.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "machine/pseudo_files.h"
#include "machine/storage.h"

namespace terrace {
namespace {

constexpr int64_t kLeastWindow = 512 << 10;
constexpr int64_t kGrain = 64 << 10;
// Large pieces cost less: what is so much slower is more than chance.
constexpr double kNearBest = 0.9;

double BestRate(const PathProfile& profile, const std::string& direction) {
  double best = 0;
  for (const RateProfile& rate : profile.rates) {
    if (rate.direction == direction) {
      best = std::max(best, rate.bytes_per_second);
    }
  }
  return best;
}

// The sizes of pieces that a full limit was measured with, and that were fast.
std::set<int64_t> FastPieces(const PathProfile& profile,
                             const std::string& direction) {
  const double best = BestRate(profile, direction);
  std::set<int64_t> pieces;
  for (const RateProfile& rate : profile.rates) {
    if (rate.direction == direction && rate.window_bytes > rate.piece_bytes &&
        rate.bytes_per_second >= kNearBest * best) {
      pieces.insert(rate.piece_bytes);
    }
  }
  return pieces;
}

const PathProfile* Find(const MachineProfile& profile,
                        const std::string& path) {
  for (const PathProfile& measured : profile.paths) {
    if (measured.path == path) return &measured;
  }
  return nullptr;
}

}  // namespace

PathTuning TuningOf(const PathProfile& profile) {
  PathTuning tuning;
  tuning.read_bytes_per_second = BestRate(profile, "read");
  tuning.write_bytes_per_second = BestRate(profile, "write");
  const double slower =
      std::min(tuning.read_bytes_per_second, tuning.write_bytes_per_second);
  if (slower > 0) {
    const IoQueueOptions defaults;
    const double bytes =
        std::min(slower * absl::ToDoubleSeconds(defaults.in_flight_latency),
                 static_cast<double>(defaults.most_in_flight_bytes));
    tuning.in_flight_bytes =
        std::max(static_cast<int64_t>(bytes) / kGrain * kGrain, kLeastWindow);
  }
  const std::set<int64_t> written = FastPieces(profile, "write");
  for (const int64_t piece : FastPieces(profile, "read")) {
    const bool is_piece = piece >= kBlockBytes && piece % kBlockBytes == 0;
    if (is_piece && written.contains(piece)) tuning.piece_bytes = piece;
  }
  return tuning;
}

absl::StatusOr<MachineTuning> ReadTuning(const std::string& file,
                                         const std::vector<std::string>& paths,
                                         const std::vector<TierSpec>& tiers) {
  TERRACE_ASSIGN_OR_RETURN(const MachineProfile profile, ReadProfile(file));
  const PseudoFiles files("");
  MachineReport machine;
  machine.machine_id = files.Text("/etc/machine-id");
  machine.kernel = files.Text("/proc/sys/kernel/osrelease");
  machine.processor.model = files.Field("/proc/cpuinfo", "model name");
  MachineTuning tuning;
  tuning.paths.resize(paths.size());
  for (const TierSpec& tier : tiers) {
    tuning.tiers.push_back({.tier = TierName(tier)});
  }
  tuning.stale = FindStale(profile, machine);
  if (!tuning.stale.empty()) return tuning;
  for (size_t i = 0; i < paths.size(); ++i) {
    machine.paths = {IdentifyPath(files, paths[i])};
    const std::vector<std::string> reasons = FindStale(profile, machine);
    tuning.stale.insert(tuning.stale.end(), reasons.begin(), reasons.end());
    if (reasons.empty()) tuning.paths[i] = TuningOf(*Find(profile, paths[i]));
  }
  machine.paths.clear();
  for (size_t i = 0; i < tiers.size(); ++i) {
    machine.tiers.assign(1, {.tier = tiers[i], .named = true});
    const std::vector<std::string> reasons = FindStale(profile, machine);
    tuning.stale.insert(tuning.stale.end(), reasons.begin(), reasons.end());
    if (!reasons.empty()) continue;
    for (const TierProfile& measured : profile.tiers) {
      if (measured.tier == tuning.tiers[i].tier) tuning.tiers[i] = measured;
    }
  }
  return tuning;
}

}  // namespace terrace
