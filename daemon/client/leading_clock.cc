#include "daemon/client/leading_clock.h"

#include <sched.h>

#include "daemon/wire/ring/futex.h"

namespace terrace {
namespace {

// As long as a wake-up across processors takes, about.
constexpr absl::Duration kSpin = absl::Microseconds(50);
// The daemon's, the one that waits, and one for the work that is waited with.
constexpr int kSpinProcessors = 3;

bool HasProcessorsToSpare() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof(processors), &processors) == 0 &&
         CPU_COUNT(&processors) >= kSpinProcessors;
}

}  // namespace

NewsSleep::NewsSleep(RingWords& news)
    : news_(news), spins_(HasProcessorsToSpare()) {}

bool NewsSleep::IsOver() const {
  return has_ended_.load() || news_.written.load() != news_.read.load();
}

bool NewsSleep::Spin() const {
  const absl::Time end = SystemClock().Now() + kSpin;
  while (SystemClock().Now() < end) {
    if (IsOver()) return true;
  }
  return false;
}

void NewsSleep::Wait(absl::Time deadline) {
  news_.thread.store(kLooks);
  const bool is_over = IsOver() || (spins_ && Spin());
  if (!is_over) {
    news_.thread.store(kSleeps);
    const uint32_t seen = news_.wakes.load();
    if (!IsOver()) {
      FutexWait(news_.wakes, seen, deadline - SystemClock().Now());
    }
  }
  news_.thread.store(kNobody);
}

void NewsSleep::End() {
  if (!process_.IsCurrent()) return;
  has_ended_.store(true);
  if (news_.thread.load() != kSleeps) return;
  news_.wakes.fetch_add(1);
  FutexWake(news_.wakes);
}

bool LeadingClock::Await(Mutex& mutex, CondVar& changed,
                         absl::FunctionRef<bool()> ready, absl::Time deadline) {
  while (!ready()) {
    if (Now() >= deadline) return false;
    // Once nothing more is heard here, the relay tells all who wait.
    if (!reader_.hears() || is_led_.exchange(true)) {
      return SystemClock().Await(mutex, changed, ready, deadline);
    }
    sleep_.Begin();
    changed.SetElsewhere(&sleep_);
    mutex.Unlock();
    sleep_.Wait(deadline);
    reader_.HearSome().IgnoreError();
    mutex.Lock();
    changed.SetElsewhere(nullptr);
    is_led_ = false;
  }
  return true;
}

}  // namespace terrace
