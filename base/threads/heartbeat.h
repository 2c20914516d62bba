// How a thread that turns a loop proves that it still turns: another thread
// asks by a word, the loop answers in each turn, and within a long one as it
// gets on. A loop that sleeps is woken by whoever asks. No lock is involved, so
// that a thread that stopped anywhere holds up neither the asker nor whoever
// looks.
//
// One thread at a time beats, one asks, any look. A thread that works for
// several says for which one it does, so that who waits for that one alone is
// told. Where another thread does the loop's work for a while, that proves
// nothing of the loop's own.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

class Heartbeat {
 public:
  // The loop's thread: what was asked until now is answered. Whether anything
  // was; two loads where it was not.
  bool Beat() {
    const uint64_t asked = asked_.load(std::memory_order_relaxed);
    if (answered_.load(std::memory_order_relaxed) == asked || is_anothers_) {
      return false;
    }
    answered_.store(asked, std::memory_order_release);
    return true;
  }
  // The loop's thread begins or ends what takes as long as it takes, as taking
  // memory does: meanwhile it is not expected to answer.
  void SetAway(bool is_away) {
    Beat();
    is_away_.store(is_away, std::memory_order_release);
  }

  // Who does the loop's work begins or ends: no Beat counts meanwhile.
  void SetAnothers(bool is_anothers) { is_anothers_ = is_anothers; }

  // The loop's thread: a number of whom it works for; 0: for nobody.
  void SetServed(int64_t session) {
    served_.store(session, std::memory_order_relaxed);
  }
  int64_t served() const { return served_.load(std::memory_order_relaxed); }

  // Nothing new, while it has not answered. Whether it is to be woken.
  bool Ask(absl::Time now) {
    const uint64_t asked = asked_.load(std::memory_order_relaxed);
    if (answered_.load(std::memory_order_acquire) == asked) {
      asked_at_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
      asked_.store(asked + 1, std::memory_order_release);
    }
    return !is_away_.load(std::memory_order_relaxed);
  }

  // How long it has not answered; nothing where it has.
  absl::Duration SilenceAt(absl::Time now) const {
    if (is_away_.load(std::memory_order_acquire)) return absl::ZeroDuration();
    // Whose time is seen with it, or that of a later one.
    const uint64_t asked = asked_.load(std::memory_order_acquire);
    if (answered_.load(std::memory_order_acquire) >= asked) {
      return absl::ZeroDuration();
    }
    return now - absl::FromUnixNanos(asked_at_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<uint64_t> asked_ = 0;
  std::atomic<uint64_t> answered_ = 0;
  std::atomic<int64_t> asked_at_ = 0;  // nanoseconds of SystemClock()
  std::atomic<bool> is_away_ = false;
  bool is_anothers_ = false;
  std::atomic<int64_t> served_ = 0;
};

}  // namespace terrace
