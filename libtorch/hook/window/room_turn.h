// Operations that have pins take turns to wait for room: one at a time, in the
// order in which they came. So the parts of a window that several of them have
// never keep all of them from the rest.
//
//   RoomTurn::Holder holder(turn);   // waits
//
// A RoomTurn is thread-safe. The operation that has the turn waits for
// operations that compute and for transfers, and for none that waits for the
// turn: so each turn ends.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace terrace {

class RoomTurn {
 public:
  class Holder {
   public:
    explicit Holder(RoomTurn& turn) : turn_(turn) { turn_.Begin(); }
    ~Holder() { turn_.End(); }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;

   private:
    RoomTurn& turn_;
  };

  RoomTurn() = default;
  RoomTurn(const RoomTurn&) = delete;
  RoomTurn& operator=(const RoomTurn&) = delete;

 private:
  void Begin() {
    MutexLock lock(mutex_);
    const uint64_t mine = next_++;
    while (mine != served_) changed_.Wait(mutex_);
  }
  void End() {
    MutexLock lock(mutex_);
    ++served_;
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
