#include "base/clock.h"

#include <chrono>

#include "absl/time/clock.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() override {
    return start_ +
           absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

  absl::Time WallNow() override { return absl::Now(); }

  bool Await(Mutex& mutex, CondVar& changed, absl::FunctionRef<bool()> ready,
             absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!ready()) {
      const absl::Duration left = deadline - Now();
      if (left <= absl::ZeroDuration()) return false;
      changed.WaitFor(mutex, left);
    }
    return true;
  }

 private:
  const absl::Time start_ = absl::Now();
  const std::chrono::steady_clock::time_point steady_start_ =
      std::chrono::steady_clock::now();
};

}  // namespace

Clock& SystemClock() {
  // Never destroyed: threads that outlive main may still ask for the time.
  static Clock& clock = *new MonotonicClock;
  return clock;
}

Clock& ClockOf(Runtime& runtime) {
  auto* const timed = dynamic_cast<TimedRuntime*>(&runtime);
  return timed == nullptr ? SystemClock() : timed->clock();
}

}  // namespace terrace
