#include "libtorch/hook/window/later_ends.h"

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
  }
  rest();  // Shut waits for it, as it has begun and not ended
  MutexLock lock(mutex_);
  if (--begun_ == 0) ended_.SignalAll();
}

void LaterEnds::Shut(absl::Time deadline) {
  MutexLock lock(mutex_);
  for (absl::Time now = absl::Now(); begun_ > 0 && now < deadline;
       now = absl::Now()) {
    ended_.WaitFor(mutex_, deadline - now);
  }
  is_shut_ = true;
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
