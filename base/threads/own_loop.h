// The heartbeat of the loop that a thread turns, for what runs there: a task
// that takes long answers in the loop's place as it gets on.
//
//   const OwnLoop loop(heartbeat);   // in the thread's body
//   OwnLoop::Beat();                 // in each turn, and within a task
//
// Each thread has its own, or none.
#pragma once

#include <cstdint>

#include "base/threads/heartbeat.h"

namespace terrace {

class OwnLoop {
 public:
  // This thread's, while the object lives; null: nobody looks.
  explicit OwnLoop(Heartbeat* heartbeat);
  ~OwnLoop();
  OwnLoop(const OwnLoop&) = delete;
  OwnLoop& operator=(const OwnLoop&) = delete;

  static void Beat();
  // For whom it works from here on, as Heartbeat has it.
  static void SetServed(int64_t session);
};

}  // namespace terrace
