// One atomic word says whether a tensor's bytes are here, how many operations
// need them to stay, and whether the tensor is managed at all, so that a pin,
// an eviction and the end of a hook cannot miss each other. A thread first
// pins, then looks.
//
//              BeginEvict          End                 BeginLoad
//   resident --------------> evicting ------> cold ------------------> loading
//      ^                       | kept           |  given up             |  ^
//      |<----------------------+                +<----------------------|  |
//      |                                                                |  |
//      |          End: bytes are here                                   |  |
//      +----------------------------------------------------------------+  |
//                                                  failed <-------------+  |
//                                                    +------BeginRetry-----+
//
// A state belongs to no thread (resident, cold, failed), or to the thread that
// changed it to evicting or loading. That thread alone touches the tensor until
// its End, which wakes all that wait. A pin may come at any time:
// it keeps a resident tensor from being evicted, and says nothing about a
// tensor that is not resident.
//
// A tensor whose pin in the Runtime was asked for back while it was in use is
// wanted: the thread that ends its last use has it evicted.
//
// Beside its state a tensor has a life with a hook. A tensor that is not
// managed takes no pins, so that one that enters, leaves or has gone belongs to
// a single thread:
//
//   entering --> managed <--> stopping --> leaving --> gone
//      |            ^                         |         ^
//      |            +-------------------------+         |
//      +------------------------------------------------+
//
// A hook that wants to close makes all its tensors stopping. Only a thread that
// has pins already takes more of them then, since it may end none that it has
// without these. So either all tensors are unpinned at one time and leave, or
// all are managed as before. The set of a hook's tensors changes their lives,
// under its lock (storage_lives.h).
//
// A ResidencyWord is thread-safe. Each end of a pin, of a state that belonged
// to a thread and of a life that did is told to threads that wait to close
// (room_news.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "libtorch/hook/window/room_news.h"

namespace terrace {

enum class Residency : uint32_t {
  kResident,
  kEvicting,  // belongs to a thread
  kCold,
  kLoading,  // belongs to a thread
  kFailed,   // the last fetch did not bring the bytes
};

enum class Life : uint32_t {
  kManaged,
  kEntering,  // belongs to a thread; its bytes are not the window's yet
  kStopping,
  kLeaving,  // belongs to a thread; its bytes become its storage's or nobody's
  kGone,     // for good
};

class ResidencyWord {
 public:
  explicit ResidencyWord(Residency state)
      : word_(static_cast<uint32_t>(state)) {}

  // Takes a pin, and returns the state at that time. After kResident the bytes
  // stay until Unpin, and the caller sees all that was done to them before.
  // Returns null, without a pin at any time, when the tensor is not managed, or
  // is stopping and the thread is none that `holds_pins`. AwaitLife says when
  // to look for the tensor again, which may be another one by then.
  std::optional<Residency> Pin(bool holds_pins = false) {
    uint32_t word = word_.load(std::memory_order_relaxed);
    do {
      const bool may =
          (word & kLifeMask) == 0 || (holds_pins && IsStopping(word));
      if (!may) return std::nullopt;
    } while (!word_.compare_exchange_weak(word, word + kPin,
                                          std::memory_order_acquire));
    return StateOf(word);
  }
  // Ends a pin. Returns true where that was the last use of a tensor that is
  // wanted: its word is the caller's then, as by BeginEvict, and the tensor is
  // to be evicted. Else the tensor may have ended by now.
  [[nodiscard]] bool Unpin() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    bool evicts = false;
    do {
      evicts = word / kPin == 1 && (word & kWanted) != 0 && IsIdle(word - kPin);
    } while (!word_.compare_exchange_weak(
        word,
        evicts ? word - kPin - word % kLife + kEvictingBits : word - kPin));
    RoomNews::Tell();  // the tensor may have ended by now
    return evicts;
  }

  // A tensor that is wanted is evicted as soon as nothing uses it. Returns true
  // where that is so already: the word is the caller's then, as by BeginEvict.
  bool Want();
  // Only the thread whose word it is calls this: the pin that was asked for has
  // ended.
  void EndWant() { word_.fetch_and(~kWanted); }

  Residency state() const {
    return StateOf(word_.load(std::memory_order_acquire));
  }
  static bool IsOwned(Residency state) {
    return state == Residency::kEvicting || state == Residency::kLoading;
  }
  Life life() const { return LifeOf(word_.load(std::memory_order_acquire)); }
  bool pinned() const { return word_.load() >= kPin; }

  // Each Begin function makes the word the caller's, or returns false and
  // changes nothing. BeginEvict takes a tensor that is resident, is not
  // pinned, and neither enters nor has gone. The caller sees all that was done
  // under pins.
  bool BeginEvict();
  // BeginLoad takes a tensor that is cold, pinned or not.
  bool BeginLoad();
  bool BeginRetry();  // takes a failed tensor, pinned or not
  // BeginRemove makes a tensor leave as Leave does, and takes it from any state
  // that belongs to no thread. The state is kEvicting then. It never waits: the
  // thread that calls it may be the thread whose word it is.
  bool BeginRemove();
  // Only the thread that makes a tensor enter or leave calls Hold and Take,
  // whatever the tensor's pins are. Hold takes a pin, which a Take that
  // `is_held` ends. Take waits until the word is no other thread's, and makes
  // it the caller's, with the state kEvicting.
  void Hold() { word_.fetch_add(kPin, std::memory_order_acquire); }
  void Take(bool is_held = false);

  // Gives the word back, with a state that belongs to no thread. Only the
  // thread whose word it is calls this.
  void End(Residency next);

  // Waits until the state belongs to no thread, and returns it.
  Residency Await() const;
  // Waits until no thread evicts the tensor, which takes no transfer.
  Residency AwaitEviction() const;

  // Begins the life; called before anything else.
  void Enter() { SetLife(Life::kEntering); }
  // Stops a managed tensor; returns false for any other.
  bool Stop();
  // Makes a tensor leave that is managed or stopping, and not pinned; returns
  // false for any other.
  bool Leave();
  // Changes the life, and wakes all that wait. Only the thread that makes the
  // tensor enter, stop or leave calls this. With `is_pinned` the tensor, which
  // becomes managed, has a pin of that thread.
  void SetLife(Life next, bool is_pinned = false);
  // Waits until the tensor is managed or gone, or, for a thread that
  // `holds_pins`, stopping.
  void AwaitLife(bool holds_pins = false) const;

 private:
  // Pins are above the bit of a tensor that is wanted, which is above the
  // life's three bits, which are above the state's three.
  static constexpr uint32_t kLife = 8;
  static constexpr uint32_t kLifeMask = 7 * kLife;
  static constexpr uint32_t kWanted = 64;
  static constexpr uint32_t kPin = 128;
  static constexpr uint32_t kEvictingBits =
      static_cast<uint32_t>(Residency::kEvicting);
  static Residency StateOf(uint32_t word) {
    return static_cast<Residency>(word % kLife);
  }
  static Life LifeOf(uint32_t word) {
    return static_cast<Life>((word & kLifeMask) / kLife);
  }
  static bool IsStopping(uint32_t word) {
    return LifeOf(word) == Life::kStopping;
  }
  static bool IsOwned(uint32_t word) { return IsOwned(StateOf(word)); }
  static bool MayLeave(uint32_t word) {
    return word < kPin && (LifeOf(word) == Life::kManaged || IsStopping(word));
  }
  // Whether a tensor may be evicted.
  static bool IsIdle(uint32_t word) {
    return word < kPin && LifeOf(word) != Life::kEntering &&
           LifeOf(word) != Life::kGone && StateOf(word) == Residency::kResident;
  }
  // Replaces the word by what `next` makes of it, if `may` allows that word;
  // else returns false.
  template <typename May, typename Next>
  bool Change(const May& may, const Next& next);

  std::atomic<uint32_t> word_;
};

}  // namespace terrace
