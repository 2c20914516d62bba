// Any medium as one of a known rate: a call's bytes move at once, and it
// returns when a server of its direction would have been done with them and
// with all that was asked before.
//
//   PacedMedium medium(inner, {kRate, kRate}, clock, sleep_until);
//   medium.Set({kRate / 2, kRate / 2});   // of calls from here on
//
// Thread-safe. What is `Remove`d is the inner one's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "terrace/options.h"
#include "tiers/medium.h"

namespace terrace {

class PacedMedium final : public Medium {
 public:
  using SleepUntil = std::function<void(absl::Time)>;

  // A rate of 0 is not paced. `sleep_until` is called by the calling thread,
  // and returns at that time of `clock`, which outlives this.
  PacedMedium(std::shared_ptr<Medium> medium, const PaceOptions& pace,
              Clock& clock, SleepUntil sleep_until)
      : medium_(std::move(medium)),
        clock_(clock),
        sleep_until_(std::move(sleep_until)),
        pace_(pace) {}

  void Set(const PaceOptions& pace) {
    MutexLock lock(mutex_);
    pace_ = pace;
  }

  const std::string& name() const override { return medium_->name(); }
  int64_t size_bytes() const override { return medium_->size_bytes(); }
  std::vector<Extent> bad_ranges() const override {
    return medium_->bad_ranges();
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    const absl::Time due = Charge(0, to.size());
    const absl::Status status = medium_->Read(offset, to);
    sleep_until_(due);
    return status;
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    const absl::Time due = Charge(1, from.size());
    const absl::Status status = medium_->Write(offset, from);
    sleep_until_(due);
    return status;
  }
  absl::Status Remove() override { return medium_->Remove(); }

 private:
  absl::Time Charge(size_t direction, size_t size) {
    MutexLock lock(mutex_);
    const absl::Time now = clock_.Now();
    const int64_t rate = direction == 0 ? pace_.read_bytes_per_second
                                        : pace_.write_bytes_per_second;
    if (rate == 0) return now;
    absl::Time& busy_until = busy_until_[direction];
    busy_until = std::max(now, busy_until) +
                 absl::Seconds(static_cast<int64_t>(size)) / rate;
    return busy_until;
  }

  const std::shared_ptr<Medium> medium_;
  Clock& clock_;
  const SleepUntil sleep_until_;
  Mutex mutex_;
  PaceOptions pace_ ABSL_GUARDED_BY(mutex_);
  std::array<absl::Time, 2> busy_until_ ABSL_GUARDED_BY(mutex_) = {
      absl::InfinitePast(), absl::InfinitePast()};  // reads, writes
};

}  // namespace terrace
