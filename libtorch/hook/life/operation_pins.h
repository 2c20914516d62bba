// OperationPins has the pins of one operation, from before it runs until after:
// it pins all that the operation takes, then brings what is away.
//
//   OperationPins pins;                     // on the operation's thread
//   if (!pins.Pin(storage)) ...             // wait for its life, begin again
//   if (!pins.Bring("aten::mm")) ...        // one has gone: begin again
//   ...                                     // it computes
//
// Lack of room is no failure. An operation that finds no room lets go of what
// it has, waits for its turn (room_turn.h), takes all again, and waits for as
// long as another one computes. Where all that hold pins wait, it goes beyond
// the budget, into ordinary memory, as an operation does that is too large for
// the budget. Where ordinary memory has no room either, what is away is refused
// for this once.
//
// So no two operations wait for each other. An operation that waits has no pins
// but those of the operations around it, which are told to wait as well. The
// operation that has the turn is waited for by those alone that want the turn
// next, and waits itself for pins that do not wait, and for transfers.
//
// The class knows no LibTorch. An object belongs to one thread; of one thread
// each object is inside the one before, or ends before the next begins.
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
  // Says how many bytes an operation that takes `bytes` of a window may have in
  // it; what the operation takes more goes beyond the window.
  using Limit = absl::FunctionRef<int64_t(ByteWindow&, int64_t bytes)>;

  OperationPins();
  ~OperationPins();
  OperationPins(const OperationPins&) = delete;
  OperationPins& operator=(const OperationPins&) = delete;

  // Returns false when the storage is not managed now; there is no pin then.
  // Storages live as long as the operation has them.
  bool Pin(StorageLife& storage) {
    storages_.push_back(&storage);  // may throw, so it comes before the pin
    const auto state = storage.word().Pin();
    if (!state.has_value()) return PinStopping(storage);
    Note(storage, *state);
    return true;
  }
  // Returns true when a pinned storage was not in memory.
  bool is_away() const { return is_away_; }
  // Waits until all pinned storages are in memory, or cannot be; errors name
  // the operation. Returns false when a storage has gone meanwhile, in whose
  // place another may be: the pins are to end then, and the operation looks for
  // all its storages again.
  bool Bring(absl::string_view operation) { return Bring(operation, NoLimit); }
  bool Bring(absl::string_view operation, Limit limit);
  // Returns the first pinned storage, for its window; there must be one.
  StorageLife& front() const { return *storages_.front(); }
  bool empty() const { return storages_.empty(); }

  // Ends a pin. The hook may close, and end, as soon as there is no pin. A
  // storage that is beyond the window goes back to the Runtime; with `waits` it
  // waits for room there if it has to.
  static void Unpin(StorageLife& storage, bool waits = true);
  // Returns whether the calling thread has any pins of operations.
  static bool ThreadHoldsPins();
  // Makes the pin one of the thread's until EndKeeping, which ends it: a
  // storage may be kept beyond the operation that pinned it.
  static void Keep(StorageLife& storage);
  static void EndKeeping(StorageLife& storage);

  // Waits until the storage takes pins of this thread, or has gone: another
  // thread has it enter, stop or leave. All that this thread has pinned counts
  // as waiting meanwhile.
  static void AwaitLife(StorageLife& storage, bool holds_pins);
  static void AwaitLife(StorageLife& storage) {
    AwaitLife(storage, ThreadHoldsPins());
  }
  // Brings a storage that the caller has pinned, in its turn where there is no
  // room.
  static absl::Status BringOne(StorageLife& storage, ByteWindow::Caller caller);
  // Does `work` in the window's turn. All that the thread has pinned counts as
  // waiting meanwhile.
  static absl::Status InTurn(ByteWindow& window,
                             absl::FunctionRef<absl::Status()> work);

 private:
  friend class WaitingPins;

  // What the operation takes of one window.
  struct Share {
    ByteWindow* window;
    int64_t bytes;     // of the operation's storages
    int64_t may_stay;  // of these, in the window
  };
  using Shares = absl::InlinedVector<Share, 2>;

  void Note(StorageLife& storage, Residency state) {
    if (state != Residency::kResident) is_away_ = true;
    storage.window().order().Note(storage);
  }
  // Tries the storage that was pushed last again, as it may be stopping: such a
  // storage takes pins only of a thread that has some already.
  bool PinStopping(StorageLife& storage);
  static int64_t NoLimit(ByteWindow&, int64_t bytes) { return bytes; }
  Shares SharesOf(Limit limit) const;
  // Brings all without a wait for room. Returns false when there is no room.
  bool TryBring();
  // Both take `mine`, the storages of one window that were let go of, pin them
  // again and bring them, in the window's turn. They return false as Bring
  // does.
  bool BringInTurn(const Share& share, const Storages& mine,
                   WaitingPins& waiting, absl::string_view operation);
  bool BringBeyond(const Share& share, const Storages& mine,
                   WaitingPins& waiting, absl::string_view operation);
  // Ends all pins. Returns the storages, each once, which are to be pinned
  // again.
  Storages LetGo();
  static bool PinAgain(StorageLife& storage);
  static void UnpinEach(Storages storages);

  Storages storages_;
  bool is_away_ = false;
  OperationPins* const outer_;
};

}  // namespace terrace
