// What threads sleep at until another one has something for them: a word and a
// futex(2). To wake takes no lock, so that a thread that stopped anywhere, also
// while it went to sleep, holds up nobody who wakes.
//
//   const uint32_t seen = word.Look();   // before it looks for work
//   if (!HasWork()) word.Await(seen);    // what came meanwhile ends it at once
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace {

class WakeWord {
 public:
  uint32_t Look() const { return word_.load(); }
  // Until somebody wakes it who came after that look. It may end too early.
  void Await(uint32_t seen);

  // What the woken are to find was there before.
  void WakeOne() { Wake(1); }
  void WakeAll() { Wake(INT32_MAX); }

 private:
  void Wake(int most);

  // Sequentially consistent: who is to sleep is counted before it looks again.
  std::atomic<uint32_t> word_ = 0;
  std::atomic<int> sleepers_ = 0;
};

}  // namespace terrace
