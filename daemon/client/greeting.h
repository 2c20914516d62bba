// How a process and a daemon meet: the process asks for a runtime, or to go on
// with one, and has what the daemon gives for it. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/client/loop_view.h"
#include "daemon/client/shared_memory.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

struct Greeted {
  PacketSocket socket;
  Welcome welcome;
  OwnDescriptor memory;  // a memory file, not mapped yet
  SharedMemory rings;
  LoopView loops;
};

// A greeting that another thread may give up. Thread-safe.
class GreetingEnd {
 public:
  // From here on greetings fail at once, as Unavailable.
  void End();

 private:
  friend absl::StatusOr<Greeted> Greet(const std::string& path, Hello hello,
                                       absl::Time deadline, GreetingEnd* end);
  // False: it is over. -1: none is under way.
  bool Set(int descriptor);

  Mutex mutex_;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  int descriptor_ ABSL_GUARDED_BY(mutex_) = -1;
};

// NotFound: nobody listens there; PermissionDenied; DeadlineExceeded;
// Unavailable: the daemon has gone meanwhile, or `end` was; else why it
// refuses.
absl::StatusOr<Greeted> Greet(const std::string& path, Hello hello,
                              absl::Time deadline, GreetingEnd* end = nullptr);

}  // namespace terrace
