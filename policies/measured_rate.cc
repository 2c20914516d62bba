#include "policies/measured_rate.h"

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

// Each transfer takes this share of what is remembered: a rate that halves is
// known to a tenth after a dozen of them.
constexpr double kNewShare = 1.0 / 4;
// One pause of a device (its garbage collection, a suspended machine) counts
// no more than this many transfers at the present rate.
constexpr double kLongestPause = 8;
// An unanswered transfer says nothing before it has taken this many times what
// it would at the present rate: others may be before it.
constexpr double kPatience = 4;
constexpr int64_t kBlockTransfers = 16;
constexpr double kSlowShare = 0.6;

}  // namespace

void MeasuredRate::Add(int64_t transfers, int64_t bytes, double busy_seconds) {
  most_ = 0;
  if (bytes <= 0 || transfers <= 0) return;
  const auto moved = static_cast<double>(bytes);
  double seconds = std::max(busy_seconds, 0.0);
  if (const double settled = Settled(); settled > 0) {
    seconds = std::min(seconds, kLongestPause * moved / settled);
    // A belief weighs as much as the first transfer.
    if (seconds_ == 0) {
      bytes_ = moved;
      seconds_ = moved / settled;
    }
  }
  const double keep = std::pow(1 - kNewShare, static_cast<double>(transfers));
  bytes_ = bytes_ * keep + moved;
  seconds_ = seconds_ * keep + seconds;
  block_transfers_ += transfers;
  block_bytes_ += moved;
  block_seconds_ += seconds;
  if (block_transfers_ < kBlockTransfers) return;
  if (block_seconds_ > 0) {
    best_ = std::max(best_, block_bytes_ / block_seconds_);
  }
  block_transfers_ = 0;
  block_bytes_ = block_seconds_ = 0;
}

void MeasuredRate::SetUnanswered(double busy_seconds, int64_t bytes) {
  const double settled = Settled();
  const auto waiting = static_cast<double>(bytes);
  most_ = 0;
  if (settled <= 0 || busy_seconds * settled < kPatience * waiting) return;
  most_ = waiting / busy_seconds;
}

double MeasuredRate::bytes_per_second() const {
  const double settled = Settled();
  return most_ > 0 ? std::min(most_, settled) : settled;
}

bool MeasuredRate::slow() const {
  return best_ > 0 && bytes_per_second() < kSlowShare * best_;
}

}  // namespace terrace
