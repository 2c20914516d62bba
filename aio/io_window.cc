#include "aio/io_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace terrace {
namespace {

constexpr int64_t kLeastPiece = 256 << 10;
constexpr int64_t kPieceGrain = 64 << 10;
constexpr absl::Duration kEpoch = absl::Milliseconds(10);
// A window in use by both directions is four pieces, and at either end of an
// epoch one of each is cut off or not: of 12 windows 4 %, of 4 it would be 12
// %, more than what decides. Where throughput changes steeply, 4 are enough.
constexpr int64_t kWindowsPerEpoch = 12;
constexpr int64_t kWindowsPerFarEpoch = 4;
constexpr double kMostLoss = 0.97;    // of throughput, for a smaller window
constexpr double kLeastGain = 1.05;   // of throughput, for a larger one
constexpr double kFar = 0.8;          // below this the window bounds throughput
constexpr double kSunk = 0.93;        // of what a larger window once gave
constexpr double kSameShare = 0.1;    // of reads, at most apart
constexpr double kMixedShare = 0.15;  // of reads and of writes, at least
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

}  // namespace

IoWindow::IoWindow(const IoQueueOptions& options)
    : is_adaptive_(options.adapts),
      most_bytes_(std::max(options.max_window_bytes, options.window_bytes)),
      largest_piece_(options.piece_bytes),
      latency_seconds_(absl::ToDoubleSeconds(options.window_latency)),
      bytes_(options.window_bytes),
      pause_(kFirstPause) {}

bool IoWindow::is_mixed() const {
  return has_share_ && read_share_ > kMixedShare &&
         read_share_ < 1 - kMixedShare;
}

int IoWindow::pieces() const { return is_mixed() ? 4 : 2; }

int64_t IoWindow::least_bytes() const {
  return std::min(pieces() * std::min(kLeastPiece, largest_piece_),
                  most_bytes_);
}

int64_t IoWindow::piece_bytes() const {
  if (!is_adaptive_) return largest_piece_;
  const int64_t piece =
      std::max(bytes_ / pieces() / kPieceGrain * kPieceGrain, kLeastPiece);
  return std::min(piece, largest_piece_);
}

void IoWindow::OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                        bool has_more) {
  if (!is_adaptive_) return;
  NoteDirection(bytes, is_read);
  if (!has_more) {
    is_running_ = false;
    return;
  }
  if (!is_running_) {
    Restart(now);
    return;
  }
  if (skipped_bytes_ > 0) {
    skipped_bytes_ -= bytes;
    began_ = now;
    return;
  }
  (is_read ? read_bytes_ : written_bytes_) += bytes;
  const int64_t windows = is_far_ ? kWindowsPerFarEpoch : kWindowsPerEpoch;
  if (now - began_ >= kEpoch &&
      read_bytes_ + written_bytes_ >= windows * bytes_) {
    OnEpoch(now);
    Restart(now);
  }
}

// A load that is mixed no longer may never fill an epoch that shows it.
void IoWindow::NoteDirection(int64_t bytes, bool is_read) {
  if (std::exchange(was_read_, is_read) != is_read) one_way_bytes_ = 0;
  one_way_bytes_ += bytes;
  if (one_way_bytes_ >= kWindowsPerEpoch * bytes_) has_share_ = false;
}

void IoWindow::Restart(absl::Time now) {
  is_running_ = true;
  began_ = now;
  read_bytes_ = 0;
  written_bytes_ = 0;
}

void IoWindow::OnEpoch(absl::Time now) {
  const auto moved = static_cast<double>(read_bytes_ + written_bytes_);
  const double rate = moved / absl::ToDoubleSeconds(now - began_);
  read_share_ = static_cast<double>(read_bytes_) / moved;
  has_share_ = true;
  if (trial_ != Trial::kNone) {
    Judge(now, rate);
  } else {
    Choose(now, rate);
  }
  // The load may have become a mixed one, which needs more.
  bytes_ = std::max(bytes_, least_bytes());
}

// A window that was tried for an epoch.
void IoWindow::Judge(absl::Time now, double rate) {
  const Trial trial = trial_;
  trial_ = Trial::kNone;
  if (std::abs(read_share_ - share_before_) > kSameShare) {
    Restore();  // another load: nothing was learnt
    next_trial_ = now + kFirstPause;
    return;
  }
  const double gain = rate / rate_before_;
  if (trial == Trial::kSmaller) {
    if (gain >= kMostLoss) {
      is_far_ = false;
      if (bytes_before_ > larger_bytes_ || rate_before_ > larger_rate_) {
        larger_bytes_ = std::max(larger_bytes_, bytes_before_);
        larger_rate_ = std::max(larger_rate_, rate_before_);
        larger_share_ = share_before_;
      }
      return;
    }
    is_far_ = gain < kFar;
    Restore();
    // A device that is far away has a larger window tried at once.
    if (is_far_ && bytes_ < most_bytes_) return;
  } else if (gain >= kLeastGain) {
    // One that was too small was kept by chance: not so soon again.
    if (is_recovery_) Refuse(now);
    return;
  } else {
    is_far_ = false;
    Restore();
    if (is_recovery_) {
      Forget();  // no more can be had now
      return;
    }
  }
  Refuse(now);
}

void IoWindow::Restore() {
  // What is in flight was let in by the larger window.
  if (bytes_ > bytes_before_) skipped_bytes_ = bytes_;
  bytes_ = bytes_before_;
}

void IoWindow::Forget() {
  larger_bytes_ = 0;
  larger_rate_ = 0;
}

void IoWindow::Refuse(absl::Time now) {
  next_trial_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

void IoWindow::Choose(absl::Time now, double rate) {
  if (std::abs(read_share_ - larger_share_) > kSameShare) Forget();
  const bool has_sunk = bytes_ < larger_bytes_ && rate < kSunk * larger_rate_;
  sunk_epochs_ = has_sunk ? sunk_epochs_ + 1 : 0;
  // One alone may be the end of a load.
  is_recovery_ = sunk_epochs_ > 2;
  if (is_recovery_) {
    sunk_epochs_ = 0;
    Try(Trial::kLarger, std::min(2 * bytes_, larger_bytes_), rate);
    return;
  }
  if (now < next_trial_) return;
  const auto wanted =
      static_cast<int64_t>(rate * latency_seconds_) / kPieceGrain * kPieceGrain;
  // At the most it may be it is judged by latency: the device may have changed.
  if (is_far_ && bytes_ < most_bytes_) {
    Try(Trial::kLarger, std::min(2 * bytes_, most_bytes_), rate);
  } else if (bytes_ > wanted + wanted / 8 && bytes_ <= least_bytes()) {
    // The device is slow or far away, and no smaller window can tell which.
    Try(Trial::kLarger, std::min(2 * bytes_, most_bytes_), rate);
  } else if (bytes_ > wanted + wanted / 8) {
    Try(Trial::kSmaller, std::max({wanted, bytes_ / 2, least_bytes()}), rate);
  } else if (bytes_ < wanted - wanted / 8) {
    Try(Trial::kLarger, std::min({wanted, 2 * bytes_, most_bytes_}), rate);
  }
}

void IoWindow::Try(Trial trial, int64_t bytes, double rate) {
  if (bytes == bytes_) return;
  trial_ = trial;
  bytes_before_ = bytes_;
  rate_before_ = rate;
  share_before_ = read_share_;
  // What is in flight was let in by the old window.
  skipped_bytes_ = std::max(bytes, bytes_);
  bytes_ = bytes;
}

}  // namespace terrace
