// Virtual time: a Clock that a test turns by hand or lets jump.
//
//   VirtualClock clock;
//   clock.AddStep([&] { return mover.RunOnce(); });  // returns its next event
//   clock.AddEvent(clock.Now() + absl::Seconds(1), [&] { fault.Clear(); });
//   while (!done) TERRACE_CHECK(clock.Advance());
//
// A step runs production code once, never blocks, and returns when it has to
// run again: a time that is not in the future means "I did something, go
// round again"; InfiniteFuture means "only after another step did". Time
// moves only when every step is quiet, and then to the earliest of the steps'
// times and the events. Nothing left to jump to is a deadlock: Advance says
// so, Await with an infinite deadline fails a check.
//
// Now is thread-safe; everything else, Await included, is for the one thread
// that runs the simulation.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

class VirtualClock final : public Clock {
 public:
  using Step = std::function<absl::Time()>;

  // Starts at a round time, so that a failure's times are readable.
  explicit VirtualClock(absl::Time start = absl::FromUnixSeconds(1000))
      : now_ns_(absl::ToUnixNanos(start)) {}

  absl::Time Now() override {
    return absl::FromUnixNanos(now_ns_.load(std::memory_order_relaxed));
  }
  absl::Time WallNow() override { return Now() + wall_ahead_; }

  // Sets the wall clock: it is that far ahead from here on.
  void SetWall(absl::Duration ahead) { wall_ahead_ = ahead; }

  // Runs in the order added, until removed.
  int AddStep(Step run_once) {
    steps_.emplace(next_id_, std::move(run_once));
    return next_id_++;
  }
  void RemoveStep(int id) { steps_.erase(id); }

  // Runs `run` once, when the time is reached; events of one time run in the
  // order added.
  void AddEvent(absl::Time at, std::function<void()> run) {
    events_.emplace(at, std::move(run));
  }

  // Moves time only, forward; nothing runs until the next Pump.
  void JumpTo(absl::Time time) {
    TERRACE_CHECK(time >= Now() && time < absl::InfiniteFuture());
    // Rounded up: a time with a fraction of a nanosecond has been reached.
    int64_t ns = absl::ToUnixNanos(time);
    if (absl::FromUnixNanos(ns) < time) ++ns;
    now_ns_.store(ns, std::memory_order_relaxed);
  }

  // Runs due events and all steps until all are quiet; returns the time of
  // the next thing to happen. Two quiet rounds: in the second, a step has
  // seen what those after it did in the first.
  absl::Time Pump(absl::FunctionRef<bool()> stop = [] { return false; }) {
    TERRACE_CHECK(!pumping_);  // a step must not wait
    pumping_ = true;
    absl::Time next = absl::InfiniteFuture();
    int quiet = 0;
    for (int64_t rounds = 0; quiet < 2; ++rounds) {
      TERRACE_CHECK(rounds < kMaxRounds);  // busy for ever at one time
      if (stop()) break;
      next = RunRound();
      quiet = next <= Now() ? 0 : quiet + 1;
    }
    pumping_ = false;
    return next;
  }

  // Pumps, then jumps to the next event, at most to `limit`. False: a
  // deadlock, nothing will ever happen.
  bool Advance(absl::Time limit = absl::InfiniteFuture()) {
    const absl::Time target = std::min(Pump(), limit);
    if (target == absl::InfiniteFuture()) return false;
    if (target > Now()) JumpTo(target);
    return true;
  }

  // Advances until `done`; false: deadlock, or `limit` reached before.
  bool RunUntil(absl::FunctionRef<bool()> done,
                absl::Time limit = absl::InfiniteFuture()) {
    while (!done()) {
      const absl::Time next = Pump(done);
      if (done()) break;
      const absl::Time target = std::min(next, limit);
      if (target == absl::InfiniteFuture() || Now() >= limit) return false;
      if (target > Now()) JumpTo(target);
    }
    return true;
  }

  bool Await(Mutex& mutex, CondVar& /*changed*/,
             absl::FunctionRef<bool()> ready, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!ready()) {
      if (Now() >= deadline) return false;
      mutex.Unlock();
      const absl::Time next = Pump([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        MutexLock lock(mutex);
        return ready();
      });
      mutex.Lock();
      if (ready()) break;
      const absl::Time target = std::min(next, deadline);
      if (target == absl::InfiniteFuture()) {
        std::fprintf(stderr, "deadlock at %s: nothing will ever happen\n",
                     absl::FormatTime(Now(), absl::UTCTimeZone()).c_str());
        TERRACE_CHECK(target != absl::InfiniteFuture());
      }
      if (target > Now()) JumpTo(target);
    }
    return true;
  }

 private:
  static constexpr int64_t kMaxRounds = 1'000'000;

  absl::Time RunRound() {
    absl::Time next = absl::InfiniteFuture();
    while (!events_.empty() && events_.begin()->first <= Now()) {
      const auto run = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      run();
      next = Now();
    }
    std::vector<int> ids;
    for (const auto& [id, step] : steps_) ids.push_back(id);
    for (const int id : ids) {
      const auto step = steps_.find(id);
      if (step == steps_.end()) continue;  // removed by another step
      const Step run_once = step->second;  // it may remove itself
      next = std::min(next, run_once());
    }
    if (!events_.empty()) next = std::min(next, events_.begin()->first);
    return next;
  }

  std::atomic<int64_t> now_ns_;
  absl::Duration wall_ahead_;
  int next_id_ = 0;
  bool pumping_ = false;
  std::map<int, Step> steps_;
  std::multimap<absl::Time, std::function<void()>> events_;
};

}  // namespace terrace
