#include "libtorch/hook/window/later_ends.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace terrace {

void LaterEnds::Begin() {
  MutexLock lock(mutex_);
  ++begun_;
}

void LaterEnds::End(const absl::Status& status,
                    absl::FunctionRef<void()> rest) {
  {
    MutexLock lock(mutex_);
    if (is_shut_) return;
    if (!status.ok()) ++failures_;
    first_error_.Update(status);
    ++ending_;
  }
  rest();
  MutexLock lock(mutex_);
  --ending_;
  --begun_;
  ++ended_count_;
  ended_.SignalAll();
}

// As many have to end as have begun: later ones, which may end before, count as
// well, so that this waits no longer than for all.
void LaterEnds::Await(absl::Time deadline) {
  MutexLock lock(mutex_);
  const int64_t wanted = ended_count_ + begun_;
  for (absl::Time now = absl::Now(); ended_count_ < wanted && now < deadline;
       now = absl::Now()) {
    ended_.WaitFor(mutex_, deadline - now);
  }
}

absl::Status LaterEnds::Shut(absl::Time deadline) {
  MutexLock lock(mutex_);
  for (absl::Time now = absl::Now(); begun_ > 0 && now < deadline;
       now = absl::Now()) {
    ended_.WaitFor(mutex_, deadline - now);
  }
  is_shut_ = true;
  while (ending_ > 0) ended_.Wait(mutex_);
  if (begun_ == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "the device has not told of ", begun_,
      " tensors' bytes that it has done what it was given with them"));
}

absl::Status LaterEnds::first_error() const {
  MutexLock lock(mutex_);
  return first_error_;
}

int64_t LaterEnds::failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

}  // namespace terrace
