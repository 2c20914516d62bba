// A path's in-flight limits, and which of them holds: one for latency and one
// for throughput. That for throughput holds while a foreseen read came within a
// second, and no demand did: then nobody waits for a read but those who wait
// for all of them. The first demand after that may wait for what that limit let
// in, the next ones do not.
//
// Each limit adapts by itself, and goes on from where it was when it holds
// again. Owned by IoQueue; time is passed in. One thread at a time.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "aio/io_transfer.h"
#include "aio/queue/in_flight_limit.h"

namespace terrace {

class InFlightLimits {
 public:
  explicit InFlightLimits(const IoQueueOptions& options)
      : for_latency_(options, options.in_flight_latency),
        for_throughput_(options, options.foreseen_latency) {}
  InFlightLimits(const InFlightLimits&) = delete;
  InFlightLimits& operator=(const InFlightLimits&) = delete;

  // The one that holds.
  const InFlightLimit& holding() const { return *holding_; }

  // A transfer has this class now.
  void OnClass(absl::Time now, IoClass io_class);
  // As InFlightLimit's.
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read, bool has_more);

 private:
  void Choose(absl::Time now);

  InFlightLimit for_latency_;
  InFlightLimit for_throughput_;
  InFlightLimit* holding_ = &for_latency_;
  absl::Time last_demand_ = absl::InfinitePast();
  absl::Time last_foreseen_ = absl::InfinitePast();
};

}  // namespace terrace
