// How many bytes a path keeps in flight, and in what pieces. More than what
// saturates the device adds latency and nothing else: a demand read waits
// about limit / bandwidth. What saturates it is found by trying.
//
// While there is more to do than the limit lets in, throughput is measured over
// epochs of at least 10 ms and twelve limits. By Little's law the limit takes
// limit / throughput to pass; where that is longer than the latency asked
// for, a smaller limit is tried, and kept unless throughput falls by 3 %.
// Where it falls steeply the device is far away rather than slow: then, and
// where latency is below what was asked for, a larger one is tried, and kept
// if it brings 5 %. A trial that fails is repeated after 0.5 s, then after
// twice that, up to 30 s. So is one that was kept by chance: when throughput
// sinks below what a larger limit gave, that limit is tried again. Epochs are
// compared only while the share of reads among the bytes stays the same.
//
// The smallest limit is two pieces of 256 KiB, of each direction where both
// are in use: with fewer a device that serves both at once waits for us in one.
// It is smaller where the options' largest piece or limit is. There only a
// larger one can be tried, which tells a slow device from one that is far away.
//
// Owned by InFlightLimits; time is passed in. One thread at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "aio/io_transfer.h"
#include "aio/queue/limit_trial.h"
#include "aio/queue/load_share.h"

namespace terrace {

class InFlightLimit {
 public:
  // `latency`: how long what is in flight may take to pass.
  InFlightLimit(const IoQueueOptions& options, absl::Duration latency);

  int64_t bytes() const { return bytes_; }

  // Of a piece, at most. Half of the limit, so that the device never waits
  // for us; a quarter when both directions are in use, which a device may
  // serve apart.
  int64_t piece_bytes() const;

  // Both directions are in use. Only known of a limit that adapts.
  bool is_mixed() const { return share_.is_mixed(); }

  // The device moved `bytes`. `has_more`: something waits to be issued; without
  // it the throughput is ours, not the device's.
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read, bool has_more);

  // It holds again. `other` held until now, and let in what is in flight; its
  // share of reads is the load's. The limit for less latency is never the
  // larger one.
  void Resume(const InFlightLimit& other);

 private:
  using Kind = LimitTrial::Kind;

  // Without a trial that is under way.
  int64_t judged_bytes() const {
    return trial_.kind == Kind::kNone ? bytes_ : trial_.bytes_before;
  }
  int pieces() const { return is_mixed() ? 4 : 2; }  // in the limit, at least
  int64_t least_bytes() const;
  int64_t EpochBytes() const;
  void OnEpoch(absl::Time now);
  void Judge(absl::Time now, double rate);
  void JudgeSmaller(absl::Time now, const LimitTrial& trial,
                    LimitTrial::Verdict verdict);
  void JudgeLarger(absl::Time now, const LimitTrial& trial,
                   LimitTrial::Verdict verdict);
  void Choose(absl::Time now, double rate);
  void Try(Kind kind, int64_t bytes, double rate);
  void Restore(const LimitTrial& trial);

  const bool is_adaptive_;
  const int64_t most_bytes_;
  const int64_t largest_piece_;
  const double latency_seconds_;
  int64_t bytes_;
  LimitEpoch epoch_;
  LoadShare share_;
  LimitTrial trial_;
  TrialPause pause_;
  LeftLimit left_;
  bool is_recovery_ = false;  // the trial is for what was left
  bool is_far_ = false;       // a smaller limit cost throughput in proportion
};

}  // namespace terrace
