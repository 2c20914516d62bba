// RoomNews wakes threads that wait for what others do with tensors, as a close
// does for the end of all pins. A thread listens, looks, and waits if what it
// saw does not let it go on.
//
//   RoomNews::Listener news;
//   while (!Look()) news.Wait(deadline);    // one thread
//   ChangeWhatIsLookedAt(); RoomNews::Tell();  // any other thread
//
// No news is lost. A thread counts as a listener before it looks, and what it
// looks at is changed and read with sequential consistency. So a change that
// the look missed finds the listener. It then moves the count, which the kernel
// compares with the one from before the look as the listener goes to sleep.
//
// There is one RoomNews in a process, as the end of a pin may be told when the
// window of the pin has ended. Where nobody listens, Tell is one load. In a
// forked child, which has none of the parent's listeners, it tells nobody.
//
// Everything is thread-safe; a Listener belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace terrace {

class RoomNews {
 public:
  class Listener {
   public:
    Listener() { RoomNews::listeners_.fetch_add(1); }
    ~Listener() { RoomNews::listeners_.fetch_sub(1); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Waits until there is news since the construction, or since the last Wait
    // returned, or until the deadline.
    void Wait(absl::Time deadline);

   private:
    uint32_t heard_ = RoomNews::count_.load();
  };

  static void Tell() {
    if (listeners_.load() > 0) TellListeners();
  }

 private:
  static void TellListeners();

  static inline constinit std::atomic<int> listeners_ = 0;
  static inline constinit std::atomic<uint32_t> count_ = 0;
};

}  // namespace terrace
