// What one operation has pinned, from before it runs until after: pins all that
// it takes, then brings what is away.
//
//   OperationPins pins;                     // on the operation's thread
//   if (!pins.Pin(storage)) ...             // wait for its life, begin again
//   if (!pins.Bring("aten::mm")) ...        // one has gone: begin again
//   ...                                     // it computes
//
// No room is no failure. An operation that finds none lets go of what it has,
// waits for its turn (room_turn.h), takes all again, and waits for as long as
// another one computes. Where all that hold pins wait, it goes beyond the
// budget, into ordinary memory, as one does that is too large for it. Where
// that has no room either, what is away is refused for this once.
//
// So no two of them wait for each other. What waits has no pins but of what is
// around it, which are told to wait as well. Who has the turn is waited for by
// those alone that want it next, and waits itself for pins that do not wait,
// and for transfers.
//
// Knows no LibTorch. One thread each; of one thread each is inside the one
// before, or ends before the next begins.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libtorch/hook/life/storage_life.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {

class WaitingPins;

class OperationPins {
 public:
  using Storages = absl::InlinedVector<StorageLife*, 6>;
  // How many bytes an operation that takes so many of a window's may have in
  // it; what it takes more goes beyond the window.
  using Limit = absl::FunctionRef<int64_t(ByteWindow&, int64_t bytes)>;

  OperationPins();
  ~OperationPins();
  OperationPins(const OperationPins&) = delete;
  OperationPins& operator=(const OperationPins&) = delete;

  // False: it is not managed now, and there is no pin. Storages live as long as
  // the operation has them.
  bool Pin(StorageLife& storage) {
    storages_.push_back(&storage);  // may throw, as long as there is no pin
    const auto state = storage.word().Pin();
    if (!state.has_value()) return PinStopping(storage);
    Note(storage, *state);
    return true;
  }
  // One of them was not here.
  bool is_away() const { return is_away_; }
  // Until all are here, or cannot be; the name is for what is told. False: one
  // has gone meanwhile, and another may be in its place: these are to end, and
  // all to be looked for again.
  bool Bring(absl::string_view operation) { return Bring(operation, NoLimit); }
  bool Bring(absl::string_view operation, Limit limit);
  // The first, for its window; there is one.
  StorageLife& front() const { return *storages_.front(); }
  bool empty() const { return storages_.empty(); }

  // Ends a pin. The hook may close, and end, as soon as there is none. What is
  // beyond the window `waits` for room to go back to, if it has to.
  static void Unpin(StorageLife& storage, bool waits = true);
  // Whether the calling thread has any, of operations.
  static bool ThreadHoldsPins();
  // The pin is one of the thread's until Unpin: for what is kept beyond the
  // operation that pinned it.
  static void Keep(StorageLife& storage);
  static void EndKeeping(StorageLife& storage);

  // Waits until the storage takes pins of this thread, or has gone: for what
  // another thread does with it, while all that this one has pinned waits.
  static void AwaitLife(StorageLife& storage, bool holds_pins);
  static void AwaitLife(StorageLife& storage) {
    AwaitLife(storage, ThreadHoldsPins());
  }
  // Brings one that the caller has pinned, in its turn where there is no room.
  static absl::Status BringOne(StorageLife& storage, ByteWindow::Caller caller);
  // `work` in the window's turn, while all that the thread has pinned waits.
  static absl::Status InTurn(ByteWindow& window,
                             absl::FunctionRef<absl::Status()> work);

 private:
  friend class WaitingPins;

  // Of one window.
  struct Share {
    ByteWindow* window;
    int64_t bytes;     // that the operation takes of it
    int64_t may_stay;  // of these
  };
  using Shares = absl::InlinedVector<Share, 2>;

  void Note(StorageLife& storage, Residency state) {
    if (state != Residency::kResident) is_away_ = true;
    storage.window().order().Note(storage);
  }
  // The last one, which takes pins of a thread alone that has some.
  bool PinStopping(StorageLife& storage);
  static int64_t NoLimit(ByteWindow&, int64_t bytes) { return bytes; }
  Shares SharesOf(Limit limit) const;
  // Without waiting for room. False: there is none.
  bool TryBring();
  // Of one window, in its turn, those that were let go of. False as Bring.
  bool BringInTurn(const Share& share, const Storages& mine,
                   WaitingPins& waiting, absl::string_view operation);
  bool BringBeyond(const Share& share, const Storages& mine,
                   WaitingPins& waiting, absl::string_view operation);
  // All of them, each once; they are to be pinned again.
  Storages LetGo();
  static bool PinAgain(StorageLife& storage);
  static void UnpinEach(Storages storages);

  Storages storages_;
  bool is_away_ = false;
  OperationPins* const outer_;
};

}  // namespace terrace
