// Keeps tensors of any sizes here in a window of so many bytes, the rest below:
// fetches what an operation needs, and evicts for it what is used latest, as
// far as that is known (use_order.h).
//
// Over a Runtime's public interface: each tensor is one of the Runtime's, and
// is pinned by it for as long as its storage has its bytes. An eviction ends
// the pin: published if it was written to, else unchanged, which costs nothing.
// What the Runtime has room for beside the window stays in memory, and comes
// back without a read.
//
// The window is exceeded where the tensors that are pinned at a time exceed it,
// as far as the Runtime has room for them, and by nothing else; Trim gives it
// back. Those of an operation that exceed even that go beyond it, into ordinary
// memory, until the operation ends (spill.h).
//
// A fetch that fails on a tier leaves its tensor failed: every use is told why,
// until Retry. One that finds no room leaves it as it was. Nothing waits for
// ever: patience is how long a fetch may take.
//
// Thread-safe. Tensors outlive their stay (Add to Remove), the Runtime all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libtorch/hook/window/ordinary_memory.h"
#include "libtorch/hook/window/room_wait.h"
#include "libtorch/hook/window/runtime_bytes.h"
#include "libtorch/hook/window/spill.h"
#include "libtorch/hook/window/use_order.h"
#include "libtorch/hook/window/window_meter.h"
#include "libtorch/hook/window/window_room.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/machine.h"
#include "terrace/runtime.h"

namespace terrace {

struct ByteWindowOptions {
  int64_t window_bytes = 0;  // headers included
  // That tensors may have pinned at a time at most; 0: the Runtime's budget.
  int64_t most_bytes = 0;
  int64_t beyond_bytes = INT64_MAX;  // in ordinary memory, at most
  absl::Duration patience = absl::Minutes(5);
  BesideOptions beside;
  // What is to leave clean is compared with what came: what differs is written
  // back, and that tensor always is from then on.
  bool verify_clean = false;
  // Of ordinary memory, where what moves out of the window goes.
  std::function<int64_t()> available_bytes = AvailableMemoryBytes;
};

class ByteWindow {
 public:
  ByteWindow(Runtime& runtime, const ByteWindowOptions& options);

  // Registers them, all or none; they are cold then, and have no contents until
  // they are filled: nothing but Fill and Remove before. Errors are
  // Runtime::Register's; paths that refuse are tried once more before.
  absl::Status Add(absl::Span<WindowTensor* const> tensors);
  // Copies the bytes from `source`, and installs them: resident from then on.
  // After an error it is as before.
  absl::Status Fill(WindowTensor& tensor, const std::byte* source,
                    RoomPatience patience = RoomPatience::kNone);
  // Of one that enters or leaves (Life), by the thread that has it do so:
  // forgets it and its contents.
  void Remove(WindowTensor& tensor);

  // A use is noted by a thread that has the tensor pinned.
  UseOrder& order() { return order_; }
  // With a pin held on it: brings it, or waits for the thread that does, until
  // it is resident (OK) or failed, with why. But for an operation it stays cold
  // then, and the next one tries it again.
  enum class Caller : uint8_t {
    kOperation,
    kLease,
    kBeside,  // waits for the room that the others have; no use of the model's
  };
  absl::Status Fetch(WindowTensor& tensor, Caller caller = Caller::kOperation,
                     RoomPatience patience = RoomPatience::kLoads);
  // The same for one of an operation that takes too much at a time, in its
  // turn: the caller has the only pin. Its bytes are in ordinary memory then,
  // if there is any.
  absl::Status FetchBeyond(WindowTensor& tensor, absl::string_view operation);
  // One that is not here, and cannot be now: an operation that looks at it is
  // told why, and the next one tries it again, or has it failed where LibTorch
  // cannot use its storage again.
  void RefuseFetch(WindowTensor& tensor, const absl::Status& why);
  // A use ends: the pin, and what the tensor has beyond the window if that was
  // the last one. Back to the window's bytes. The tensor may be gone then, but
  // not this. Where the room is not over, and the tensor not beyond it, the
  // word's Unpin is the same.
  void EndUse(WindowTensor& tensor,
              RoomPatience patience = RoomPatience::kTurn);
  // Begins to bring it; nothing waits for it. A hint: it is dropped where that
  // needs what was begun ahead itself, or is used by operations.
  void FetchAhead(WindowTensor& tensor);
  // The same of what the trace says is used next, at most half of the window,
  // in place of what is used later.
  void FetchUpcoming();
  // What may be fetched ahead by those that know better than the trace: nothing
  // once there is one.
  int64_t bytes_ahead() const {
    return order_.known() ? 0 : options_.window_bytes / 2;
  }

  // Back to the window's bytes, as far as pins allow.
  void Trim();
  // To be trimmed where it is over.
  WindowRoom& room() { return room_; }
  // Everything that is not pinned; how many there were.
  int64_t EvictAll();
  // What failed may be fetched again. False: this LibTorch cannot use the
  // storage of one again, which stays failed.
  bool Retry();
  // As Remove, but brings it before, and puts it into memory of its storage's
  // own. ResourceExhausted: memory has no room for it; or why it cannot be
  // brought. It stays then, as it is, and may be tried again.
  absl::Status MoveOut(WindowTensor& tensor);
  // As Remove, and takes its bytes away for good: each use fails with `why`.
  void Refuse(WindowTensor& tensor, const std::string& why);

  ByteWindowStats stats() const;

 private:
  // Room in the window for it, by evictions, or beyond it.
  void Claim(const WindowTensor& tensor);
  absl::StatusOr<Pin> Bring(WindowTensor& tensor, Access access, Caller caller,
                            RoomPatience patience);
  // Begins to, as soon as there is room.
  absl::Status Ask(WindowTensor& tensor, Access access, Caller caller,
                   RoomPatience patience);
  // Room for what is claimed already.
  absl::StatusOr<bool> MakeRoom(RoomWait& wait);
  // With the word in loading; ends it. False: there is no room.
  bool BeginAhead(WindowTensor& tensor, const UseOrder::VictimRule& rule);
  // With the word in loading; ends it.
  absl::Status Load(WindowTensor& tensor, Caller caller, RoomPatience patience);
  absl::Status Fail(WindowTensor& tensor, const absl::Status& why,
                    Caller caller);
  // Of one that is beyond the window.
  void EndBeyond(WindowTensor& tensor, RoomPatience patience);
  // With the word in evicting: gives back all that it has, and ends it.
  void Forget(WindowTensor& tensor);
  bool EvictOne(const UseOrder::VictimRule& rule = {});
  bool EvictOwned(WindowTensor& tensor);

  Runtime& runtime_;
  const ByteWindowOptions options_;
  WindowRoom room_;
  RuntimeBytes bytes_;
  const OrdinaryMemory ordinary_;
  Spill spill_{bytes_};
  UseOrder order_;
  std::atomic<int64_t> away_ = 0;      // tensors that are not here
  std::atomic<size_t> looked_at_ = 0;  // the position that was looked ahead of
  WindowMeter meter_;
};

}  // namespace terrace
