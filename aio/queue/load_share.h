// Which share of a path's bytes is read. A load in which both directions have
// theirs is mixed, until twelve limits of one have passed without the other.
//
// One thread at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

namespace terrace {

// Limits that pass in an epoch, at least.
inline constexpr int64_t kLimitsPerEpoch = 12;

class LoadShare {
 public:
  void OnAnswer(int64_t bytes, bool is_read, int64_t limit_bytes) {
    if (std::exchange(was_read_, is_read) != is_read) one_way_bytes_ = 0;
    one_way_bytes_ += bytes;
    // A load that is mixed no longer may never fill an epoch that shows it.
    if (one_way_bytes_ >= kLimitsPerEpoch * limit_bytes) is_known_ = false;
  }
  void OnEpoch(double read_share) {
    reads_ = read_share;
    is_known_ = true;
  }

  bool is_mixed() const {
    return is_known_ && reads_ > kMixed && reads_ < 1 - kMixed;
  }
  // Of the last whole epoch.
  double reads() const { return reads_; }

 private:
  static constexpr double kMixed = 0.15;  // of reads and of writes, at least

  double reads_ = 0;
  bool is_known_ = false;
  bool was_read_ = false;      // the last answer
  int64_t one_way_bytes_ = 0;  // since one of the other direction
};

// Whether two epochs, of these shares of reads, may be compared.
inline bool IsSameLoad(double reads, double other_reads) {
  constexpr double kApart = 0.1;
  return std::abs(reads - other_reads) <= kApart;
}

}  // namespace terrace
