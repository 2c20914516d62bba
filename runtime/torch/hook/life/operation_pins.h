// What one operation has pinned, from before it runs until after: pins all that
// it takes, then brings what is away.
//
//   OperationPins pins;                     // on the operation's thread
//   if (!pins.Pin(storage)) ...             // wait for its life, begin again
//   pins.Bring("aten::mm");
//   ...                                     // it computes
//
// No room is no failure. An operation that finds none lets go of what it has,
// waits for its turn (room_turn.h), takes all again, and waits for as long as
// another one computes. Where all that hold pins wait, it goes beyond the
// budget, into ordinary memory, as one does that is too large for it. Where
// that has no room either, what is away is refused for this once.
//
// Knows no LibTorch. One thread each; of one thread each is inside the one
// before, or ends before the next begins.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/torch/hook/life/storage_life.h"
#include "runtime/torch/hook/window/byte_window.h"

namespace terrace {

class OperationPins {
 public:
  using Storages = absl::InlinedVector<StorageLife*, 6>;

  OperationPins();
  ~OperationPins();
  OperationPins(const OperationPins&) = delete;
  OperationPins& operator=(const OperationPins&) = delete;

  // False: it is not managed now, and there is no pin. Storages live as long as
  // the operation has them.
  bool Pin(StorageLife& storage);
  // One of them was not here.
  bool is_away() const { return is_away_; }
  // For one that is: until all are here, or cannot be. The name is for what is
  // told.
  void Bring(absl::string_view operation);
  // The first, for its window; there is one.
  StorageLife& front() const {
    return *(storages_.empty() ? beyond_ : storages_).front();
  }
  // There is none.
  bool empty() const { return storages_.empty() && beyond_.empty(); }

  // Ends a pin. The hook may close, and end, as soon as there is none.
  static void Unpin(StorageLife& storage);
  // Whether the calling thread has any, of operations.
  static bool ThreadHoldsPins();
  // The pin is one of the thread's until Unpin: for what is kept beyond the
  // operation that pinned it.
  static void Keep(StorageLife& storage);
  static void EndKeeping(StorageLife& storage);

  // Brings one that the caller has pinned, in its turn where there is no room.
  static absl::Status BringOne(StorageLife& storage, ByteWindow::Caller caller);
  // `work` in the window's turn, while all that the thread has pinned waits.
  static absl::Status InTurn(ByteWindow& window,
                             absl::FunctionRef<absl::Status()> work);

 private:
  friend class WaitingPins;

  // Without waiting for room. False: there is none.
  bool TryBring();
  // With all of one window, in its turn.
  void BringInTurn(ByteWindow& window, absl::string_view operation);
  void BringBeyond(ByteWindow& window, absl::string_view operation);
  Storages Of(const ByteWindow& window) const;
  // Those of one window are let go of, each once; they are to be pinned again.
  Storages LetGo(const ByteWindow& window);
  // Null: it has gone meanwhile, and has its bytes.
  static std::optional<Residency> PinAgain(StorageLife& storage);
  void UnpinAll();

  Storages storages_;
  Storages beyond_;  // others
  bool is_away_ = false;
  OperationPins* outer_;
};

}  // namespace terrace
