#include "optimizer/step/step_meter.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

StepMeter::Bucket StepMeter::BucketOf(WaitCause cause) {
  switch (cause) {
    case WaitCause::kRead:
      return Bucket::kRead;
    case WaitCause::kWriteBack:
      return Bucket::kWrite;
    case WaitCause::kSpace:
      return Bucket::kSpace;
    case WaitCause::kNone:
      break;
  }
  return Bucket::kOther;
}

void StepMeter::Begin() {
  begin_ = clock_.Now();
  for (absl::Duration& bucket : buckets_) bucket = absl::ZeroDuration();
  MutexLock lock(mutex_);
  mark_ = begin_;
  TERRACE_CHECK(running_ == 0);
  compute_ = absl::ZeroDuration();
}

void StepMeter::Cut(Bucket bucket) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mutex_);
  if (running_ == 0) {
    const absl::Time from = std::max(mark_, idle_since_);
    if (from < now) buckets_[static_cast<int>(bucket)] += now - from;
  }
  mark_ = now;
}

void StepMeter::Start(int units) {
  TERRACE_CHECK(units > 0);
  Cut(Bucket::kOther);
  MutexLock lock(mutex_);
  // A kernel may have ended since the cut.
  if (running_ == 0) busy_since_ = std::max(mark_, idle_since_);
  running_ += units;
}

void StepMeter::End() {
  const absl::Time now = clock_.Now();
  MutexLock lock(mutex_);
  TERRACE_CHECK(running_ > 0);
  ++ended_;
  if (--running_ == 0) {
    // Another task may have read a later time and counted its end before, or
    // a cut found this one running: no time is lost, none counted twice.
    idle_since_ = std::max({now, idle_since_, mark_});
    compute_ += idle_since_ - busy_since_;
  }
  // Under the lock: once it is free the meter may be destroyed.
  changed_.SignalAll();
}

int StepMeter::running() const {
  MutexLock lock(mutex_);
  return running_;
}

int64_t StepMeter::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void StepMeter::WaitForEnd(int64_t seen, absl::Duration most) {
  MutexLock lock(mutex_);
  clock_.Await(
      mutex_, changed_,
      [this, seen]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ended_ > seen || running_ == 0;
      },
      clock_.Now() + most);
}

void StepMeter::WaitForAll() {
  MutexLock lock(mutex_);
  clock_.Await(
      mutex_, changed_,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; },
      absl::InfiniteFuture());
}

void StepMeter::Fill(StepReport& report) {
  Cut(Bucket::kOther);
  const auto seconds = [this](Bucket bucket) {
    return absl::ToDoubleSeconds(buckets_[static_cast<int>(bucket)]);
  };
  report.blocked_read_seconds = seconds(Bucket::kRead);
  report.blocked_write_seconds = seconds(Bucket::kWrite);
  report.blocked_space_seconds = seconds(Bucket::kSpace);
  report.other_seconds = seconds(Bucket::kOther);
  MutexLock lock(mutex_);
  report.total_seconds = absl::ToDoubleSeconds(mark_ - begin_);
  report.compute_seconds = absl::ToDoubleSeconds(compute_);
}

}  // namespace terrace
