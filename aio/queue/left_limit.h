// A larger in-flight limit that was left for a smaller one, and what it gave:
// when throughput sinks below that, the smaller one was kept by chance.
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/queue/load_share.h"

namespace terrace {

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
