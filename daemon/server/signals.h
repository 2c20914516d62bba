// The signals by which a daemon is told to end or to read its configuration
// again, as something to wait for beside others.
//
// Until it is made, SIGTERM and SIGINT end the process as they do any other, as
// it takes memory, which may take minutes, and what it leaves the next start
// removes; IgnoreAtFirst is for the others. Threads of the library have all
// signals blocked. One a process; it belongs to the process's first thread.
#pragma once

#include <signal.h>

#include <optional>

#include "base/process.h"

namespace terrace {

class Signals {
 public:
  // A daemon that starts reads its configuration anyhow, and a reader of its
  // log may end: neither SIGHUP nor SIGPIPE ends it.
  static void IgnoreAtFirst();

  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // SIGTERM, SIGINT or SIGHUP that has come; nothing: none has.
  std::optional<int> Next();

  // For poll(2) alone.
  int descriptor() const { return descriptor_.get(); }

 private:
  OwnDescriptor descriptor_;
};

}  // namespace terrace
