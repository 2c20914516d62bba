// Keeps signals out of the library's own threads: they are for the threads of
// the program that has handlers for them.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace terrace {

// Blocks all signals in this thread while it lives; threads inherit the mask.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t previous_;
};

}  // namespace terrace
