// Whether a tensor's bytes are here, how many operations need them to stay, and
// whether it is managed at all: in one atomic word, so that a pin, an eviction
// and the end of a hook cannot miss each other. First pin, then look.
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
// Beside that a tensor has a life with a hook. What is not managed takes no
// pins, so that what enters, leaves or has gone is its one thread's alone:
//
//   entering --> managed <--> stopping --> leaving --> gone
//      |            ^                         |         ^
//      |            +-------------------------+         |
//      +------------------------------------------------+
//
// Stopping is what a hook that wants to close does to all that it has: only a
// thread that has pins already takes more of them, for it lets go of none
// without; so that all are unpinned at one time and leave, or all are managed
// as before. The set of a hook's tensors changes the life, under its lock
// (storage_lives.h).
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace terrace {

enum class Residency : uint32_t {
  kResident,
  kEvicting,  // a thread's
  kCold,
  kLoading,  // a thread's
  kReady,    // a fetch was begun ahead of need; what is left is to take it
  kFailed,   // the last fetch did not bring the bytes
};

enum class Life : uint32_t {
  kManaged,
  kEntering,  // a thread's: its bytes are not the window's yet
  kStopping,
  kLeaving,  // a thread's: its bytes become its storage's own, or nobody's
  kGone,     // for good
};

class ResidencyWord {
 public:
  explicit ResidencyWord(Residency state)
      : word_(static_cast<uint32_t>(state)) {}

  // What it was then; kResident: the bytes stay until the Unpin, and all that
  // was done to them before is seen. Null: there is no pin, as it is not
  // managed, or is stopping and the thread is none that `holds_pins`; AwaitLife
  // says when to look for it again, which may be another one by then.
  std::optional<Residency> Pin(bool holds_pins = false) {
    const uint32_t word = word_.fetch_add(kPin, std::memory_order_acquire);
    if ((word & kLifeMask) != 0 && !(holds_pins && IsStopping(word))) {
      Unpin();
      return std::nullopt;
    }
    return StateOf(word);
  }
  void Unpin() { word_.fetch_sub(kPin, std::memory_order_release); }

  Residency state() const {
    return StateOf(word_.load(std::memory_order_acquire));
  }
  static bool IsOwned(Residency state) {
    return state == Residency::kEvicting || state == Residency::kLoading;
  }
  Life life() const { return LifeOf(word_.load(std::memory_order_acquire)); }
  bool pinned() const { return pins() > 0; }
  uint32_t pins() const { return word_.load(std::memory_order_acquire) / kPin; }

  // Each makes the word the caller's, or answers false and changes nothing.
  // Resident or ready, not pinned, and neither entering nor gone. What was done
  // under pins is seen.
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
  // Of one that enters or leaves, by the thread that has it do so, whatever its
  // pins are. Hold: a pin, until Take. Take: waits until it is no other
  // thread's, and makes it the caller's, as BeginRemove.
  void Hold() { word_.fetch_add(kPin, std::memory_order_acquire); }
  void Take(bool is_held = false);

  // By the thread whose word it is, to a state that is none's.
  void End(Residency next);

  // Waits until it is no thread's.
  Residency Await() const;

  // Before anything else.
  void Enter() { SetLife(Life::kEntering); }
  // Managed. False: it is not.
  bool Stop();
  // Managed or stopping, and not pinned. False: it is not.
  bool Leave();
  // By the thread that has it enter, stop or leave: wakes all that wait.
  // `is_pinned`: by that thread, once it is managed.
  void SetLife(Life next, bool is_pinned = false);
  // Waits until it is managed or gone; for a thread that `holds_pins`, or is
  // stopping.
  void AwaitLife(bool holds_pins = false) const;

 private:
  // Pins are above the life's three bits, which are above the state's three.
  static constexpr uint32_t kLife = 8;
  static constexpr uint32_t kLifeMask = 7 * kLife;
  static constexpr uint32_t kPin = 64;
  static Residency StateOf(uint32_t word) {
    return static_cast<Residency>(word % kLife);
  }
  static Life LifeOf(uint32_t word) {
    return static_cast<Life>(word % kPin / kLife);
  }
  static bool IsStopping(uint32_t word) {
    return LifeOf(word) == Life::kStopping;
  }
  static bool IsOwned(uint32_t word) { return IsOwned(StateOf(word)); }
  static bool IsEvictable(uint32_t word) {
    return LifeOf(word) != Life::kEntering && LifeOf(word) != Life::kGone;
  }
  // To what `next` makes of the word, while `may` says that it may.
  template <typename May, typename Next>
  bool Change(const May& may, const Next& next);

  std::atomic<uint32_t> word_;
};

}  // namespace terrace
