// How many bytes a path keeps in flight, and in what pieces. More than what
// saturates the device adds latency and nothing else: a demand read waits
// about window / bandwidth. What saturates it is found by trying.
//
// While there is more to do than the window holds, throughput is measured over
// epochs of at least 10 ms and twelve windows. By Little's law the window takes
// window / throughput to pass; where that is longer than the latency asked
// for, a smaller window is tried, and kept unless throughput falls by 3 %.
// Where it falls steeply the device is far away rather than slow: then, and
// where latency is below what was asked for, a larger one is tried, and kept
// if it brings 5 %. A trial that fails is repeated after 0.5 s, then after
// twice that, up to 30 s. So is one that was kept by chance: when throughput
// sinks below what a larger window gave, that window is tried again. Epochs are
// compared only while the share of reads among the bytes stays the same.
//
// The smallest window is two pieces of 256 KiB, of each direction where both
// are in use: with fewer a device that serves both at once waits for us in one.
// It is smaller where the options' largest piece or window is. There only a
// larger one can be tried, which tells a slow device from one that is far away.
//
// Owned by IoQueue; time is passed in. One thread at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "aio/io_group.h"

namespace terrace {

class IoWindow {
 public:
  explicit IoWindow(const IoQueueOptions& options);

  int64_t bytes() const { return bytes_; }

  // Of a piece, at most. Half of the window, so that the device never waits
  // for us; a quarter when both directions are in use, which a device may
  // serve apart.
  int64_t piece_bytes() const;

  // Both directions are in use: until twelve windows of one have passed without
  // the other. Only known of a window that adapts.
  bool is_mixed() const;

  // The device moved `bytes`. `has_more`: something waits to be issued; without
  // it the throughput is ours, not the device's.
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read, bool has_more);

 private:
  enum class Trial : uint8_t { kNone, kSmaller, kLarger };

  int pieces() const;           // in the window, at least
  int64_t least_bytes() const;  // the window
  void NoteDirection(int64_t bytes, bool is_read);
  void Restart(absl::Time now);
  void OnEpoch(absl::Time now);
  void Judge(absl::Time now, double rate);
  void Choose(absl::Time now, double rate);
  void Try(Trial trial, int64_t bytes, double rate);
  void Restore();
  void Forget();
  void Refuse(absl::Time now);

  const bool is_adaptive_;
  const int64_t most_bytes_;
  const int64_t largest_piece_;
  const double latency_seconds_;
  int64_t bytes_;

  // The epoch.
  bool is_running_ = false;
  absl::Time began_;
  int64_t skipped_bytes_ = 0;  // still to pass before it begins
  int64_t read_bytes_ = 0;
  int64_t written_bytes_ = 0;
  double read_share_ = 0;  // of the last whole epoch
  bool has_share_ = false;
  bool was_read_ = false;      // the last answer
  int64_t one_way_bytes_ = 0;  // since one of the other direction

  Trial trial_ = Trial::kNone;
  int64_t bytes_before_ = 0;  // the trial
  double rate_before_ = 0;
  double share_before_ = 0;
  bool is_far_ = false;       // a smaller window cost throughput in proportion
  int64_t larger_bytes_ = 0;  // a window that was given up, what it gave, and
  double larger_rate_ = 0;    // of which load
  double larger_share_ = 0;
  int sunk_epochs_ = 0;       // one after the other below that rate
  bool is_recovery_ = false;  // the trial is for that rate
  absl::Time next_trial_ = absl::InfinitePast();
  absl::Duration pause_;
};

}  // namespace terrace
