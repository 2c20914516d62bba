// The time over which a path's throughput is measured: at least 10 ms, and as
// many bytes as are asked for.
//
// One thread at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

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

}  // namespace terrace
