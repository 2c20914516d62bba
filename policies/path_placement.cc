#include "policies/path_placement.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace terrace {
namespace {

// A path that had no room for a while makes up for at most this many extents of
// the slowest path's time, so that it is not flooded when it has some again.
constexpr double kMostCredit = 8;
// One that was slow when it was last given some pays for no more than this many
// extents at its present rate.
constexpr double kMostDebt = 4;
// Home is kept while it is better by no more than this many of the other's.
constexpr double kMostSlack = 4;

}  // namespace

double RoundTripRate(const PathPrior& path) {
  const double read = path.read_bytes_per_second;
  const double write = path.write_bytes_per_second;
  if (read <= 0 || write <= 0) return std::max({read, write, 0.0}) / 2;
  return 1 / (1 / read + 1 / write);
}

int ChoosePath(absl::Span<const PathLoad> paths, int64_t size_bytes) {
  int best = -1;
  double best_seconds = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].usable) continue;
    const double seconds = (static_cast<double>(paths[i].placed_bytes) +
                            static_cast<double>(size_bytes)) /
                           paths[i].bytes_per_second;
    if (best < 0 || seconds < best_seconds) {
      best = static_cast<int>(i);
      best_seconds = seconds;
    }
  }
  return best;
}

Placement::Placement(int paths, absl::Span<const PathPrior> priors) {
  TERRACE_CHECK(priors.empty() || static_cast<int>(priors.size()) == paths);
  for (int i = 0; i < paths; ++i) {
    const PathPrior prior =
        priors.empty() ? PathPrior() : priors[static_cast<size_t>(i)];
    Path path;
    path.read = MeasuredRate(prior.read_bytes_per_second);
    path.write = MeasuredRate(prior.write_bytes_per_second);
    paths_.push_back(path);
  }
}

Placement::Rates Placement::RoundTripRates() const {
  Rates rates;
  double sum = 0;
  int known = 0;
  for (const Path& path : paths_) {
    rates.push_back(RoundTripRate(
        {path.read.bytes_per_second(), path.write.bytes_per_second()}));
    if (rates.back() <= 0) continue;
    sum += rates.back();
    ++known;
  }
  const double mean = known == 0 ? 1 : sum / known;
  for (double& rate : rates) {
    if (rate <= 0) rate = mean;
  }
  return rates;
}

void Placement::OnWritten(int path, bool ok, int64_t failures) {
  Path& written = at(path);
  if (!ok || failures == written.failures) written.trying = false;
  if (!ok) {
    ++written.failures;
    written.refuses = true;
    written.trial = false;
    return;
  }
  if (!written.refuses || failures != written.failures) return;
  written.refuses = false;
  written.trial = false;
  for (const Path& each : paths_) {  // what it has missed is not made up for
    written.clock = std::max(written.clock, each.clock);
  }
}

void Placement::TryAgain(const PathFlags& hold) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    paths_[i].trial = paths_[i].refuses && !paths_[i].trying && !hold[i];
  }
}

bool Placement::trying() const {
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const Path& path) { return path.trying; });
}

PathTrust Placement::trust(int path) const {
  const Path& asked = at(path);
  if (asked.trial) return PathTrust::kOnTrial;
  if (asked.refuses) return PathTrust::kRefusing;
  return asked.reads_fail ? PathTrust::kDoubtful : PathTrust::kGood;
}

int Placement::ChooseHome(absl::Span<const int64_t> placed_bytes,
                          const PathFlags& usable, int64_t size_bytes) const {
  const Rates rates = RoundTripRates();
  for (const bool good : {true, false}) {
    std::vector<PathLoad> loads;
    for (int i = 0; i < static_cast<int>(paths_.size()); ++i) {
      const PathTrust trusted = trust(i);
      loads.push_back(
          {placed_bytes[static_cast<size_t>(i)], rates[static_cast<size_t>(i)],
           usable[static_cast<size_t>(i)] && trusted != PathTrust::kRefusing &&
               (trusted == PathTrust::kGood || !good)});
    }
    const int chosen = ChoosePath(loads, size_bytes);
    if (chosen >= 0) return chosen;
  }
  return -1;
}

Placement::Field Placement::MakeField() const {
  Field field;
  field.rates = RoundTripRates();
  for (int i = 0; i < static_cast<int>(paths_.size()); ++i) {
    if (trust(i) != PathTrust::kGood) continue;
    field.earliest = std::min(field.earliest, at(i).clock);
    field.latest = std::max(field.latest, at(i).clock);
    field.slowest = std::max(field.slowest, field.Seconds(i, largest_bytes_));
  }
  return field;
}

double Placement::FinishTime(const Field& field, int path,
                             int64_t size_bytes) const {
  const double clock = at(path).clock;
  const double least =
      std::max(field.latest, clock) - kMostCredit * field.slowest;
  const double most = std::max(std::min(field.earliest, clock), least) +
                      field.slowest +
                      kMostDebt * field.Seconds(path, largest_bytes_);
  return std::clamp(clock, least, most) + field.Seconds(path, size_bytes);
}

int Placement::ChooseTarget(int home, const PathFlags& usable,
                            int64_t size_bytes) const {
  const Field field = MakeField();
  int best = -1;
  double best_finish = 0;
  for (int i = 0; i < static_cast<int>(paths_.size()); ++i) {
    if (!usable[static_cast<size_t>(i)]) continue;
    // One extent finds out: it is still above, should it be refused.
    if (trust(i) == PathTrust::kOnTrial) return i;
    if (trust(i) == PathTrust::kRefusing) continue;
    if (best >= 0 && trust(best) != trust(i) &&
        trust(best) != PathTrust::kDoubtful) {
      continue;
    }
    const double finish = FinishTime(field, i, size_bytes);
    if (best >= 0 && trust(best) == trust(i) && finish >= best_finish) continue;
    best = i;
    best_finish = finish;
  }
  if (best < 0 || best == home || !usable[static_cast<size_t>(home)] ||
      trust(home) != trust(best)) {
    return best;
  }
  const double slack = std::min(field.Seconds(home, size_bytes),
                                kMostSlack * field.Seconds(best, size_bytes));
  return FinishTime(field, home, size_bytes) <= best_finish + slack ? home
                                                                    : best;
}

void Placement::OnPlaced(int path, int64_t size_bytes) {
  largest_bytes_ = std::max(largest_bytes_, size_bytes);
  at(path).clock = FinishTime(MakeField(), path, size_bytes);
  if (std::exchange(at(path).trial, false)) at(path).trying = true;
}

}  // namespace terrace
