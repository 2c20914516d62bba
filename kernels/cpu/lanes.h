// The tasks that a pool of workers has still to run, and which is next: motion
// first, so that what copies bring is there when computation asks for it, but
// while computation waits at most half of the workers run motion (one worker
// runs of both in turn). First in, first out within a lane. A worker is never
// idle while a task waits.
//
//   lanes.Add(task, Lane::kMotion);
//   const Lane lane = lanes.Next();
//   auto task = lanes.Begin(lane);
//   ... it runs ...
//   lanes.End(lane);
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/executor.h"

namespace terrace {

class Lanes {
 public:
  explicit Lanes(int workers)
      : workers_(workers), most_motion_(std::max(1, workers / 2)) {
    TERRACE_CHECK(workers >= 1);
  }

  void Add(std::function<void()> task, Lane lane) {
    waiting(lane).push_back(std::move(task));
  }
  bool empty() const { return compute_.empty() && motion_.empty(); }

  // The lane whose first task is to run; not when empty.
  Lane Next() const {
    TERRACE_CHECK(!empty());
    if (motion_.empty()) return Lane::kCompute;
    if (compute_.empty()) return Lane::kMotion;
    if (workers_ == 1 && last_ == Lane::kMotion) return Lane::kCompute;
    return running_motion_ < most_motion_ ? Lane::kMotion : Lane::kCompute;
  }

  // Takes the first task of `lane`; a worker runs it, until End.
  std::function<void()> Begin(Lane lane) {
    TERRACE_CHECK(!waiting(lane).empty());
    std::function<void()> task = std::move(waiting(lane).front());
    waiting(lane).pop_front();
    last_ = lane;
    if (lane == Lane::kMotion) ++running_motion_;
    return task;
  }
  void End(Lane lane) {
    if (lane == Lane::kMotion) --running_motion_;
    TERRACE_CHECK(running_motion_ >= 0);
  }

 private:
  std::deque<std::function<void()>>& waiting(Lane lane) {
    return lane == Lane::kMotion ? motion_ : compute_;
  }

  const int workers_;
  const int most_motion_;  // workers on motion, while computation waits
  int running_motion_ = 0;
  Lane last_ = Lane::kCompute;  // begun
  std::deque<std::function<void()>> compute_;
  std::deque<std::function<void()>> motion_;
};

}  // namespace terrace
