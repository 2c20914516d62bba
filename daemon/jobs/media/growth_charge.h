// What a job's file or memory has of a tier, which grows: charged before it
// comes, and given back once all of it has gone.
//
// Growth is one thread's at a time; the end may be another's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/jobs/charge.h"
#include "tiers/growth/growth.h"

namespace terrace {

class GrowthCharge {
 public:
  // `charged_bytes` are charged already.
  GrowthCharge(std::unique_ptr<Charge> charge, int64_t charged_bytes)
      : charge_(std::move(charge)), charged_(charged_bytes) {}
  ~GrowthCharge() { GiveAll(); }
  GrowthCharge(const GrowthCharge&) = delete;
  GrowthCharge& operator=(const GrowthCharge&) = delete;

  // Charges what is better, or else the least; what may grow by then.
  // ResourceExhausted, which is noted: a quota has no room for either.
  absl::StatusOr<Growth> Take(Growth growth) {
    absl::Status charged = charge_->Take(growth.bytes);
    if (!charged.ok() && growth.least_bytes < growth.bytes) {
      growth.bytes = growth.least_bytes;
      charged = charge_->Take(growth.bytes);
    }
    if (charged.ok()) return growth;
    charge_->NoteRefused(charged);
    return charged;
  }
  // What came of such growth; the rest is given back.
  absl::StatusOr<int64_t> Keep(const Growth& growth,
                               absl::StatusOr<int64_t> gained) {
    const int64_t kept = gained.ok() ? *gained : 0;
    if (kept < growth.bytes) charge_->Give(growth.bytes - kept);
    charged_ += kept;
    return gained;
  }
  void GiveAll() {
    const int64_t all = charged_.exchange(0);
    if (all > 0) charge_->Give(all);
  }

 private:
  const std::unique_ptr<Charge> charge_;
  std::atomic<int64_t> charged_;
};

}  // namespace terrace
