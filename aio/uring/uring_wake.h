// What ends a ring's wait from another thread: an eventfd that the ring polls.
//
// One thread, the ring's; only Signal is thread-safe.
#pragma once

#include <cstdint>

#include "base/process.h"

struct io_uring;

namespace terrace {

class UringWake {
 public:
  // By which the ring knows that poll; no request's.
  static constexpr uint64_t kPlace = UINT64_MAX - 1;

  UringWake() = default;
  UringWake(const UringWake&) = delete;
  UringWake& operator=(const UringWake&) = delete;

  // 0 or an errno; once.
  int Open();
  int fd() const { return fd_.get(); }

  void Signal() const;

  // The ring polls it from its next submission on, unless it does or has no
  // room.
  void Arm(io_uring* ring);
  bool is_armed() const { return is_armed_; }
  // The ring's poll has ended.
  void OnPolled();

  // Takes what was signalled since.
  void Take();
  // It was signalled, and no Clear came since.
  bool is_woken() const { return is_woken_; }
  void Clear() { is_woken_ = false; }

 private:
  OwnDescriptor fd_;
  bool is_armed_ = false;
  bool is_woken_ = false;
};

}  // namespace terrace
