// Whether a tensor's bytes are here, and how many operations need them to stay:
// both in one atomic word, so that a pin and an eviction cannot miss each
// other. First pin, then look.
//
//              BeginEvict          End                 BeginLoad
//   resident --------------> evicting ------> cold ------------------> loading
//      ^                       | kept          ^ | given up             |  ^
//      |<----------------------+               | +<---------------------|  |
//      |                                       |     begun ahead        |  |
//      |          End: bytes are here          |     of need: ready <---|  |
//      +---------------------------------------|-----------|------------+  |
//                                    BeginEvict +<----------+--BeginLoad---->|
//                                                  failed <----+  BeginRetry
//
// A state belongs to no thread (resident, cold, ready, failed) or to the one
// that changed it to evicting or loading: that one alone touches the tensor
// until its End, which tells all that wait. A pin may come at any time: it
// keeps what is resident from being evicted, and says nothing about what is
// not.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace {

enum class Residency : uint32_t {
  kResident,
  kEvicting,  // a thread's
  kCold,
  kLoading,  // a thread's
  kReady,    // a fetch was begun ahead of need; what is left is to take it
  kFailed,   // the last fetch did not bring the bytes
};

class ResidencyWord {
 public:
  explicit ResidencyWord(Residency state)
      : word_(static_cast<uint32_t>(state)) {}

  // What it was then; kResident: the bytes stay until the Unpin, and all that
  // was done to them before is seen.
  Residency Pin() {
    return StateOf(word_.fetch_add(kPin, std::memory_order_acquire));
  }
  void Unpin() { word_.fetch_sub(kPin, std::memory_order_release); }

  Residency state() const {
    return StateOf(word_.load(std::memory_order_acquire));
  }
  bool pinned() const { return word_.load(std::memory_order_acquire) >= kPin; }

  // Each makes the word the caller's, or answers false and changes nothing.
  // Resident or ready, and not pinned. What was done under pins is seen.
  bool BeginEvict();
  // Cold or ready; pinned or not.
  bool BeginLoad();
  bool BeginRetry();  // failed; pinned or not
  // Resident, and pinned by the caller alone, who keeps the pin: it is loading
  // then, so that its bytes may change their place.
  bool BeginMove();
  // Ends a pin; if that was the last one of a resident tensor, the word is the
  // caller's, as by BeginEvict. False: the pin has ended, no more.
  bool UnpinToEvict();
  // Of any state that is no thread's, and not pinned: to take the tensor out.
  // It is kEvicting then.
  bool BeginRemove();

  // By the thread whose word it is, to a state that is none's.
  void End(Residency next);

  // Waits until it is no thread's.
  Residency Await() const;

 private:
  static constexpr uint32_t kPin = 8;
  static Residency StateOf(uint32_t word) {
    return static_cast<Residency>(word % kPin);
  }
  static bool IsOwned(uint32_t word) {
    const Residency state = StateOf(word);
    return state == Residency::kEvicting || state == Residency::kLoading;
  }

  std::atomic<uint32_t> word_;  // pins above the state's three bits
};

}  // namespace terrace
