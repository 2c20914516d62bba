// Time and waiting, so that a test can be the time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "runtime/base/mutex.h"

namespace terrace {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;

  // Waits, with `mutex` held on entry and exit, until ready() or `deadline`;
  // returns ready(). `changed` is signalled whenever ready() may have become
  // true. A virtual clock ignores it: it lets go of the mutex, steps what is
  // registered with it, and jumps to the next event.
  virtual bool Await(Mutex& mutex, CondVar& changed,
                     absl::FunctionRef<bool()> ready, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;
};

// The machine's: absl::Now() advanced by a monotonic source, so that a change
// of the wall clock neither shortens nor lengthens a wait. Lives for ever.
Clock& SystemClock();

}  // namespace terrace
