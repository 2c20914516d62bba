// Tells the silence of what is watched from our own. A process that did not
// run (stopped by a signal or a debugger, starved, swapped out) has not looked,
// and its own threads have not answered it: that time makes nothing late.
//
// Looks are due often while anything is awaited; where one comes far too late,
// whatever is awaited is given its whole patience again from there.
//
//   watch.Begin(now);                       // something is awaited
//   Sleep(std::min(due, watch.next_look()));
//   watch.Look(now);
//   if (now >= std::max(since, watch.since()) + patience) ...  // late
//
// One thread at a time.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace terrace {

class Watch {
 public:
  // What is awaited has that patience; the least of all that were named
  // decides how often to look: eight times in it, once a millisecond at most.
  void Expect(absl::Duration patience) {
    interval_ = std::min(interval_, std::max(patience / 8, kLeastInterval));
  }
  // Nothing was awaited until now.
  void Begin(absl::Time now) { last_look_ = now; }
  void Look(absl::Time now) {
    if (now - last_look_ > kMissedLooks * interval_) since_ = now;
    last_look_ = now;
  }

  absl::Time next_look() const { return last_look_ + interval_; }
  // Whose silence began earlier, its counts from here.
  absl::Time since() const { return since_; }

 private:
  static constexpr absl::Duration kLeastInterval = absl::Milliseconds(1);
  // More is a gap: half of the patience.
  static constexpr int kMissedLooks = 4;

  absl::Duration interval_ = absl::InfiniteDuration();
  absl::Time last_look_ = absl::InfinitePast();
  absl::Time since_ = absl::InfinitePast();
};

}  // namespace terrace
