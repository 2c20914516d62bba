// OperationPins has the pins of one operation, from before it runs until after:
// it pins all that the operation takes, then brings what is away.
//
//   OperationPins pins;                     // on the operation's thread
//   if (!pins.Pin(storage)) ...             // wait for its life, begin again
//   pins.Bring("aten::mm");                 // waits
//   ...                                     // it computes
//
// Lack of room is no failure. An operation asks for all that it lacks as one
// group, and waits with what it has: its own pins, and those of the operations
// around it. Whatever nobody uses leaves for it, and what others use leaves
// with its last use. Where all that hold pins wait, the operation has its
// tensors beyond the budget, in ordinary memory. Where that has no room either,
// what is away is refused for this once.
//
// The class knows no LibTorch. An object belongs to one thread; of one thread
// each object is inside the one before, or ends before the next begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "libtorch/hook/life/storage_life.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {

class OperationPins {
 public:
  using Storages = absl::InlinedVector<StorageLife*, 6>;

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
  // the operation.
  void Bring(absl::string_view operation);
  // What the operation takes of each window, headers included.
  struct Share {
    ByteWindow* window;
    int64_t bytes;
  };
  using Shares = absl::InlinedVector<Share, 2>;
  Shares shares() const;
  bool empty() const { return storages_.empty(); }

  // Ends a pin. The hook may close, and end, as soon as there is no pin.
  static void Unpin(StorageLife& storage);
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
  // Brings a storage that the caller has pinned.
  static absl::Status BringOne(StorageLife& storage, ByteWindow::Caller caller);
  // Fills a storage that enters from where its bytes are, for which it may have
  // to wait as an operation does.
  static absl::Status Fill(StorageLife& storage);

  // Until its end all that the calling thread has pinned counts as waiting.
  class Waiting {
   public:
    Waiting() : Waiting(nullptr) {}
    // Not what it has in this window.
    explicit Waiting(const ByteWindow* besides);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Storages waiting_;
  };

 private:
  // Notes the storage that was pushed last. An operation's use of what it takes
  // twice, or of what an operation around it takes, is part of one use.
  void Note(StorageLife& storage, Residency state) {
    if (state != Residency::kResident) {
      is_away_ = true;
    } else if (!IsTaken(storage)) {
      storage.window().NoteUse(storage, ByteWindow::Caller::kOperation);
    }
  }
  // Returns whether this operation took it before, or one around this does, as
  // far as these are few.
  bool IsTaken(const StorageLife& storage) const;
  // Tries the storage that was pushed last again, as it may be stopping: such a
  // storage takes pins only of a thread that has some already.
  bool PinStopping(StorageLife& storage);
  // All that the calling thread has pinned.
  static Storages PinnedByThread();
  static ByteWindow::Tensors PinnedIn(const ByteWindow& window);

  Storages storages_;
  bool is_away_ = false;
  OperationPins* const outer_;
};

}  // namespace terrace
