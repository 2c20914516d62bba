// The signals by which a daemon is told to end or to read its configuration
// again, as something to wait for beside others.
//
// Made before any thread, so that all threads have these signals blocked; one
// a process. It belongs to the thread that made it.
#pragma once

#include <signal.h>

#include <optional>

#include "base/process.h"

namespace terrace {

class Signals {
 public:
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
