// A thread of the library's own: it has a name that `top -H` shows, and no
// signals, which are for the threads of the program that has handlers for them.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <array>
#include <cstddef>
#include <thread>
#include <utility>

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

// Runs `body`, which the thread owns. std::system_error where there is no
// thread to be had.
template <size_t kSize, typename Body>
std::thread StartThread(const char (&name)[kSize], Body body) {
  static_assert(kSize <= 16, "what the kernel keeps of a name");
  const BlockedSignals blocked;
  return std::thread(
      [name = std::to_array(name), body = std::move(body)]() mutable {
        pthread_setname_np(pthread_self(), name.data());
        body();
      });
}

}  // namespace terrace
