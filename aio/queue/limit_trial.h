// The trial of another in-flight limit: what was before, and what an epoch
// with the new one says about it. Then how long until the next trial.
//
// Plain values and one rule; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "aio/queue/load_share.h"

namespace terrace {

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

}  // namespace terrace
