// Time and waiting, so that a test can be the time.
//
// There are two times. Everything inside is by Now, which cannot be set. The
// public interface's deadlines are by the wall clock as their caller reads it,
// and that may be set, by hours: they are turned by FromWall where they come
// in, once, and by ToWall where one part is itself a caller of that interface.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace terrace {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;
  // What a caller of the public interface reads, absl::Now() as a rule.
  virtual absl::Time WallNow() { return Now(); }

  // The same distance from now by the other clock; what is infinite stays so.
  absl::Time FromWall(absl::Time deadline) {
    return Now() + (deadline - WallNow());
  }
  absl::Time ToWall(absl::Time deadline) {
    return WallNow() + (deadline - Now());
  }

  // Waits, with `mutex` held on entry and exit, until ready() or `deadline`;
  // returns ready(). `changed` is signalled whenever ready() may have become
  // true. A virtual clock ignores it: it lets go of the mutex, steps what is
  // registered with it, and jumps to the next event.
  virtual bool Await(Mutex& mutex, CondVar& changed,
                     absl::FunctionRef<bool()> ready, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;
  // The same of a thread that was made to wait, for what may never come.
  virtual bool AwaitIdly(Mutex& mutex, CondVar& changed,
                         absl::FunctionRef<bool()> ready, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return Await(mutex, changed, ready, deadline);
  }
};

// The machine's: a monotonic source, which counts from the wall clock's time
// at its first use and does not follow it from there. Lives for ever.
Clock& SystemClock();

// The door by which a test's time comes to the customers of a runtime. The
// public interface knows the wall clock alone; a runtime that is turned in
// virtual time says so here, and its customers measure and wait by the same.
class TimedRuntime {
 public:
  virtual ~TimedRuntime() = default;
  // Lives as long as the runtime.
  virtual Clock& clock() = 0;
};

class Runtime;

// The machine's, unless the runtime is a TimedRuntime.
Clock& ClockOf(Runtime& runtime);

}  // namespace terrace
