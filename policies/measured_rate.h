// How fast a device moves bytes in one direction while it has any to move:
// the time in which it had none does not count, so an idle path is not called
// slow. Bytes and busy time are two sums that forget alike, so that transfers
// which end at once after a pause give no rate of their own. One thread at a
// time.
#pragma once

#include <cstdint>

namespace terrace {

class MeasuredRate {
 public:
  // `prior`: bytes per second believed before anything was measured; 0: none.
  explicit MeasuredRate(double prior = 0) : prior_(prior) {}

  // What ended since the last call: `transfers` >= 1 of them, of `bytes`
  // together, in `busy_seconds` of having any under way.
  void Add(int64_t transfers, int64_t bytes, double busy_seconds);
  // Of a transfer that has been under way for so long, with nothing ended
  // meanwhile: until the next Add the rate is at most what that leaves.
  void SetUnanswered(double busy_seconds, int64_t bytes);

  // 0: unknown.
  double bytes_per_second() const;
  // It has fallen well below what this path held for some time.
  bool slow() const;

 private:
  double Settled() const { return seconds_ > 0 ? bytes_ / seconds_ : prior_; }

  double prior_;
  double bytes_ = 0;
  double seconds_ = 0;
  double most_ = 0;  // bytes per second allowed by what is unanswered; 0: any
  // The rate of the last block of transfers, and the best of any.
  int64_t block_transfers_ = 0;
  double block_bytes_ = 0;
  double block_seconds_ = 0;
  double best_ = 0;
};

}  // namespace terrace
