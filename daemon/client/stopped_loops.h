// Whether what is under way at a daemon will end: nothing of it does while a
// loop that serves this process has stopped. The daemon's page tells of that;
// it is looked at once something has been under way for as long as a loop may
// stop, and then no more often than that takes. While nothing is under way
// there is nothing to look at.
//
// One thread at a time. Times are by the clock that the caller reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/client/loop_view.h"

namespace terrace {

class StoppedLoops {
 public:
  // `job`: as errors name it. `io_timeout`: what a disk may take, and its
  // thread; the others have a quarter of it.
  StoppedLoops(LoopView view, std::string job, absl::Duration io_timeout)
      : view_(std::move(view)), job_(std::move(job)), io_timeout_(io_timeout) {}

  // Another daemon's from here on.
  void SetView(LoopView view) {
    view_ = std::move(view);
    turns_ = 0;
    next_ = absl::InfiniteFuture();
  }
  // Something has been under way since then; infinite: nothing is.
  void OnUnderWay(absl::Time begun) {
    if (next_ == absl::InfiniteFuture()) next_ = begun + ServesWithin();
  }
  absl::Time NextLook() const { return next_; }
  // Of what begins now; for any thread.
  absl::Time LatestLook(absl::Time now) const {
    return now + 2 * ServesWithin();
  }
  // `oldest`: since when anything is under way; infinite: nothing is.
  // Unavailable: for longer than that a loop may stop, and has; names it.
  absl::Status Look(absl::Time now, absl::Time oldest);

 private:
  absl::Duration ServesWithin() const { return io_timeout_ / 4; }
  absl::Duration PatienceWith(size_t loop) const {
    return loop >= LoopPage::kFiles ? io_timeout_ : ServesWithin();
  }
  absl::Status Stopped(absl::Duration silence) const;

  LoopView view_;
  std::string job_;
  absl::Duration io_timeout_;
  uint64_t turns_ = 0;  // as it was looked at last
  absl::Time next_ = absl::InfiniteFuture();
};

}  // namespace terrace
