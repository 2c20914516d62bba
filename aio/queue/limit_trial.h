// What an in-flight limit learns by trying another one: the time over which
// throughput is measured, what such an epoch says about the other limit, how
// long until the next trial, and what a larger limit gave that was left.
//
// Plain values and rules; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "aio/queue/load_share.h"

namespace terrace {

// The time over which a path's throughput is measured: at least 10 ms, and as
// many bytes as are asked for.
class LimitEpoch {
 public:
  // Bytes that were let in by another limit pass before the epoch begins.
  void Skip(int64_t bytes) { skipped_bytes_ = bytes; }
  // Throughput is not the device's: the next Add begins anew.
  void Stop() { is_running_ = false; }
  void Begin(absl::Time now) {
    is_running_ = true;
    began_ = now;
    read_bytes_ = 0;
    written_bytes_ = 0;
  }

  // The device moved `bytes`. True: the epoch is whole, with `least_bytes` at
  // least.
  bool Add(absl::Time now, int64_t bytes, bool is_read, int64_t least_bytes) {
    if (!is_running_) {
      Begin(now);
      return false;
    }
    if (skipped_bytes_ > 0) {
      skipped_bytes_ -= bytes;
      began_ = now;
      return false;
    }
    (is_read ? read_bytes_ : written_bytes_) += bytes;
    return now - began_ >= kLeast && moved_bytes() >= least_bytes;
  }

  // Of a whole epoch; bytes per second, and the share of reads among them.
  double rate(absl::Time now) const {
    return static_cast<double>(moved_bytes()) /
           absl::ToDoubleSeconds(now - began_);
  }
  double read_share() const {
    return static_cast<double>(read_bytes_) /
           static_cast<double>(moved_bytes());
  }

 private:
  static constexpr absl::Duration kLeast = absl::Milliseconds(10);

  int64_t moved_bytes() const { return read_bytes_ + written_bytes_; }

  bool is_running_ = false;
  absl::Time began_;
  int64_t skipped_bytes_ = 0;  // still to pass before it begins
  int64_t read_bytes_ = 0;
  int64_t written_bytes_ = 0;
};

// The trial of another limit: what was before, and what an epoch with the new
// one says about it.
struct LimitTrial {
  enum class Kind : uint8_t { kNone, kSmaller, kLarger };
  enum class Verdict : uint8_t {
    kOtherLoad,  // nothing was learnt
    kKeep,
    kRefuse,
    kRefuseFar,  // a smaller one cost throughput in proportion
  };

  Kind kind = Kind::kNone;
  int64_t bytes_before = 0;
  double rate_before = 0;
  double reads_before = 0;

  // Of an epoch with this throughput and share of reads.
  Verdict Judge(double rate, double reads) const {
    constexpr double kMostLoss = 0.97;   // of throughput, for a smaller limit
    constexpr double kLeastGain = 1.05;  // of throughput, for a larger one
    constexpr double kFar = 0.8;  // below this the limit bounds throughput
    if (!IsSameLoad(reads, reads_before)) return Verdict::kOtherLoad;
    const double gain = rate / rate_before;
    if (kind == Kind::kLarger) {
      return gain >= kLeastGain ? Verdict::kKeep : Verdict::kRefuse;
    }
    if (gain >= kMostLoss) return Verdict::kKeep;
    return gain < kFar ? Verdict::kRefuseFar : Verdict::kRefuse;
  }
};

// After a trial that fails the next is 0.5 s later, then twice that, at most
// 30 s.
class TrialPause {
 public:
  bool IsOver(absl::Time now) const { return now >= next_; }
  void OnFailure(absl::Time now) {
    next_ = now + pause_;
    pause_ = std::min(2 * pause_, kLongest);
  }
  void OnNothingLearnt(absl::Time now) { next_ = now + kFirst; }

 private:
  static constexpr absl::Duration kFirst = absl::Milliseconds(500);
  static constexpr absl::Duration kLongest = absl::Seconds(30);

  absl::Time next_ = absl::InfinitePast();
  absl::Duration pause_ = kFirst;
};

// A larger limit that was left for a smaller one, and what it gave: when
// throughput sinks below that, the smaller one was kept by chance.
class LeftLimit {
 public:
  // This limit, at this throughput and share of reads, is left.
  void Note(int64_t bytes, double rate, double reads) {
    if (bytes <= bytes_ && rate <= rate_) return;
    bytes_ = std::max(bytes_, bytes);
    rate_ = std::max(rate_, rate);
    reads_ = reads;
  }
  void Forget() {
    bytes_ = 0;
    rate_ = 0;
  }

  // An epoch at `limit_bytes`. True: it is to be tried again.
  bool IsMissed(int64_t limit_bytes, double rate, double reads) {
    if (!IsSameLoad(reads, reads_)) Forget();
    const bool has_sunk = limit_bytes < bytes_ && rate < kSunk * rate_;
    sunk_epochs_ = has_sunk ? sunk_epochs_ + 1 : 0;
    // One alone may be the end of a load.
    if (sunk_epochs_ <= 2) return false;
    sunk_epochs_ = 0;
    return true;
  }

  int64_t bytes() const { return bytes_; }

 private:
  static constexpr double kSunk = 0.93;  // of what it gave

  int64_t bytes_ = 0;
  double rate_ = 0;
  double reads_ = 0;
  int sunk_epochs_ = 0;  // one after the other below that rate
};

}  // namespace terrace
