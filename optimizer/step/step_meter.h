// Counts the kernels that run for one step, and copies from and to devices as
// if they were, and says where its time went.
//
// The calling thread and the tasks of the executor share it. Each span of
// time is the difference of two of its own clock reads: while at least one
// kernel runs it is compute (from the dispatch of the first to the end of the
// last), otherwise it goes to the bucket that the calling thread names when it
// cuts its timeline. Seconds.
//
// Thread-safe: Start and End from anywhere; everything else on the customer's
// thread. Clock must outlive it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "terrace/optimizer.h"
#include "terrace/request.h"

namespace terrace {

class StepMeter {
 public:
  explicit StepMeter(Clock& clock) : clock_(clock) {}
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  enum class Bucket : uint8_t { kRead, kWrite, kSpace, kOther };
  static Bucket BucketOf(WaitCause cause);

  // A new step begins now; nothing runs.
  void Begin();
  // Time since the last cut in which no kernel ran belongs to `bucket`.
  void Cut(Bucket bucket);
  // `units` (> 0) kernels are about to be handed to the executor. Cuts into
  // kOther first if none ran.
  void Start(int units);
  // One of them ended. By its task, as its last access to anything shared.
  void End();

  int running() const;
  // Kernels that ended since the meter was made; for WaitForEnd.
  int64_t ended() const;
  // Until more than `seen` kernels have ended, or none runs, or the time has
  // passed: for what is to be looked at then.
  void WaitForEnd(int64_t seen, absl::Duration most = absl::InfiniteDuration());
  // Until none runs. However long: what a kernel touches is the caller's.
  void WaitForAll();

  // Adds what was measured since Begin to the report's seconds.
  void Fill(StepReport& report);

 private:
  Clock& clock_;
  absl::Time begin_;  // customer's thread only, as the buckets
  absl::Duration buckets_[4];

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Time mark_ ABSL_GUARDED_BY(mutex_);  // of the last cut
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time busy_since_ ABSL_GUARDED_BY(mutex_);
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration compute_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
