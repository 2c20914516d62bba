#include "aio/queue/in_flight_limit.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace terrace {
namespace {

constexpr int64_t kLeastPiece = 256 << 10;
constexpr int64_t kPieceGrain = 64 << 10;
// A limit in use by both directions is four pieces, and at either end of an
// epoch one of each is cut off or not: of 12 limits 4 %, of 4 it would be 12
// %, more than what decides. Where throughput changes steeply, 4 are enough.
constexpr int64_t kLimitsPerFarEpoch = 4;

}  // namespace

InFlightLimit::InFlightLimit(const IoQueueOptions& options,
                             absl::Duration latency)
    : is_adaptive_(options.adapts),
      most_bytes_(
          std::max(options.most_in_flight_bytes, options.in_flight_bytes)),
      largest_piece_(options.piece_bytes),
      latency_seconds_(absl::ToDoubleSeconds(latency)),
      bytes_(options.in_flight_bytes) {}

int64_t InFlightLimit::least_bytes() const {
  return std::min(pieces() * std::min(kLeastPiece, largest_piece_),
                  most_bytes_);
}

int64_t InFlightLimit::EpochBytes() const {
  return (is_far_ ? kLimitsPerFarEpoch : kLimitsPerEpoch) * bytes_;
}

int64_t InFlightLimit::piece_bytes() const {
  if (!is_adaptive_) return largest_piece_;
  const int64_t piece =
      std::max(RoundDown(bytes_ / pieces(), kPieceGrain), kLeastPiece);
  return std::min(piece, largest_piece_);
}

void InFlightLimit::OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                             bool has_more) {
  if (!is_adaptive_) return;
  share_.OnAnswer(bytes, is_read, bytes_);
  if (!has_more) {
    epoch_.Stop();
  } else if (epoch_.Add(now, bytes, is_read, EpochBytes())) {
    OnEpoch(now);
    epoch_.Begin(now);
  }
}

void InFlightLimit::Resume(const InFlightLimit& other) {
  if (trial_.kind != Kind::kNone) Restore(std::exchange(trial_, LimitTrial()));
  const bool is_for_less = latency_seconds_ < other.latency_seconds_;
  bytes_ = is_for_less ? std::min(bytes_, other.judged_bytes())
                       : std::max(bytes_, other.judged_bytes());
  share_ = other.share_;
  epoch_.Stop();
  epoch_.Skip(other.bytes_);
}

void InFlightLimit::OnEpoch(absl::Time now) {
  const double rate = epoch_.rate(now);
  share_.OnEpoch(epoch_.read_share());
  if (trial_.kind != Kind::kNone) {
    Judge(now, rate);
  } else {
    Choose(now, rate);
  }
  // The load may have become a mixed one, which needs more.
  bytes_ = std::max(bytes_, least_bytes());
}

// A limit that was tried for an epoch.
void InFlightLimit::Judge(absl::Time now, double rate) {
  const LimitTrial trial = std::exchange(trial_, LimitTrial());
  const LimitTrial::Verdict verdict = trial.Judge(rate, share_.reads());
  if (verdict == LimitTrial::Verdict::kOtherLoad) {
    Restore(trial);
    pause_.OnNothingLearnt(now);
  } else if (trial.kind == Kind::kSmaller) {
    JudgeSmaller(now, trial, verdict);
  } else {
    JudgeLarger(now, trial, verdict);
  }
}

void InFlightLimit::JudgeSmaller(absl::Time now, const LimitTrial& trial,
                                 LimitTrial::Verdict verdict) {
  is_far_ = verdict == LimitTrial::Verdict::kRefuseFar;
  if (verdict == LimitTrial::Verdict::kKeep) {
    left_.Note(trial.bytes_before, trial.rate_before, trial.reads_before);
    return;
  }
  Restore(trial);
  // A device that is far away has a larger limit tried at once.
  if (is_far_ && bytes_ < most_bytes_) return;
  pause_.OnFailure(now);
}

void InFlightLimit::JudgeLarger(absl::Time now, const LimitTrial& trial,
                                LimitTrial::Verdict verdict) {
  if (verdict == LimitTrial::Verdict::kKeep) {
    // One that was too small was kept by chance: not so soon again.
    if (is_recovery_) pause_.OnFailure(now);
    return;
  }
  is_far_ = false;
  Restore(trial);
  if (is_recovery_) {
    left_.Forget();  // no more can be had now
  } else {
    pause_.OnFailure(now);
  }
}

void InFlightLimit::Restore(const LimitTrial& trial) {
  // What is in flight was let in by the larger limit.
  if (bytes_ > trial.bytes_before) epoch_.Skip(bytes_);
  bytes_ = trial.bytes_before;
}

void InFlightLimit::Choose(absl::Time now, double rate) {
  is_recovery_ = left_.IsMissed(bytes_, rate, share_.reads());
  if (is_recovery_) {
    Try(Kind::kLarger, std::min(2 * bytes_, left_.bytes()), rate);
    return;
  }
  if (!pause_.IsOver(now)) return;
  const int64_t wanted =
      RoundDown(static_cast<int64_t>(rate * latency_seconds_), kPieceGrain);
  // At the most it may be it is judged by latency: the device may have changed.
  if (is_far_ && bytes_ < most_bytes_) {
    Try(Kind::kLarger, std::min(2 * bytes_, most_bytes_), rate);
  } else if (bytes_ > wanted + wanted / 8 && bytes_ <= least_bytes()) {
    // The device is slow or far away, and no smaller limit can tell which.
    Try(Kind::kLarger, std::min(2 * bytes_, most_bytes_), rate);
  } else if (bytes_ > wanted + wanted / 8) {
    Try(Kind::kSmaller, std::max({wanted, bytes_ / 2, least_bytes()}), rate);
  } else if (bytes_ < wanted - wanted / 8) {
    Try(Kind::kLarger, std::min({wanted, 2 * bytes_, most_bytes_}), rate);
  }
}

void InFlightLimit::Try(Kind kind, int64_t bytes, double rate) {
  if (bytes == bytes_) return;
  trial_ = {kind, bytes_, rate, share_.reads()};
  // What is in flight was let in by the old limit.
  epoch_.Skip(std::max(bytes, bytes_));
  bytes_ = bytes;
}

}  // namespace terrace
