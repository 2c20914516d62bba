// A tier's space that grows in the background: whether it does, whether it is
// late, and what became of it. One that stands still for too long is late:
// nothing more is asked of it until it answers.
//
// Mover only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/watch.h"
#include "tiers/byte_tier.h"
#include "tiers/growth/growth.h"

namespace terrace {

class TierGrowth {
 public:
  // `clock` outlives it; null, of a tier that never grows. `patience`: how long
  // growth may seem to stand still.
  TierGrowth(Clock* clock, absl::Duration patience)
      : clock_(clock), patience_(patience) {}

  bool growing() const { return growing_; }
  bool late() const { return late_; }  // growing, past its deadline
  // It could not be had the last time.
  bool refused() const { return refused_; }
  void ForgetRefusals() { refused_ = false; }

  // `progress` is some number that changes while it gets on.
  void Begin(const Growth& growth, bool must, int64_t progress);
  // As Tier::CheckGrowth; `name` is the tier's.
  absl::Status Check(absl::Time now, int64_t progress, const std::string& name);
  absl::Time NextEvent() const;
  GrowthAnswer End(const absl::Status& how);

 private:
  Clock* const clock_;
  const absl::Duration patience_;
  bool growing_ = false;
  bool late_ = false;
  bool must_ = false;
  bool refused_ = false;
  int64_t bytes_ = 0;
  absl::Time since_;      // when it was asked, or was last seen to get on
  int64_t progress_ = 0;  // then
  Watch watch_;           // by Check: time without looks is not counted
};

}  // namespace terrace
