// A ByteWindow keeps tensors of any sizes in memory, within a window of so many
// bytes, and the others below. It fetches the tensors that an operation needs,
// and evicts for them those whose next use is latest, as far as that is known
// (use_order.h).
//
// The window uses a Runtime's public interface: each tensor is one of the
// Runtime's, which has it pinned for as long as the storage has its bytes
// there. An eviction ends the pin: the tensor is published if it was written
// to, else it is unchanged, which costs nothing. An evicted tensor that the
// Runtime has room for beside the window stays in memory, and comes back
// without a read.
//
// Tensors exceed the window only where those that are pinned at a time do, and
// as far as the Runtime has room for them; Trim gives that room back. Tensors
// of an operation that exceed even that room go beyond it, into ordinary
// memory, until the operation ends (spill.h).
//
// A tensor that a tier fails to bring to an operation stays failed until Retry,
// and every use of it is told why. A fetch that finds no room leaves its tensor
// as it was. No call waits for ever: ByteWindowOptions::patience is how long a
// fetch may take.
//
// A ByteWindow is thread-safe. A tensor outlives its stay, from Add to Remove,
// and the Runtime outlives the window and every stay.
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
  // Tensors may have at most this much pinned at a time; 0 stands for the
  // Runtime's budget.
  int64_t most_bytes = 0;
  int64_t beyond_bytes = INT64_MAX;  // in ordinary memory, at most
  absl::Duration patience = absl::Minutes(5);
  BesideOptions beside;
  // A tensor that is to leave clean is compared with the bytes that came; one
  // that differs is written back, and always is from then on.
  bool verify_clean = false;
  // Returns how much ordinary memory is available for tensors that move out of
  // the window.
  std::function<int64_t()> available_bytes = AvailableMemoryBytes;
};

class ByteWindow {
 public:
  ByteWindow(Runtime& runtime, const ByteWindowOptions& options);

  // Registers all of these tensors, or none. They are cold then and have no
  // contents: until Fill, only Fill and Remove may be called for them. Errors
  // are Runtime::Register's; paths that all refuse are tried once more before
  // it fails.
  absl::Status Add(absl::Span<WindowTensor* const> tensors);
  // Copies the tensor's bytes from `source` and installs them; the tensor is
  // resident from then on. After an error the tensor is as before.
  absl::Status Fill(WindowTensor& tensor, const std::byte* source,
                    RoomPatience patience = RoomPatience::kNone);
  // Forgets a tensor and its contents. Only the thread that makes the tensor
  // enter or leave (Life) calls this.
  void Remove(WindowTensor& tensor);
  // Does the same for a tensor whose word is the caller's.
  void RemoveOwned(WindowTensor& tensor);

  // A use is noted by a thread that has the tensor pinned.
  UseOrder& order() { return order_; }
  // Brings the tensor, or waits for the thread that does; the caller has it
  // pinned. Returns OK once the tensor is resident, else why it is not. A
  // tensor that an operation asked for is failed then, unless there was no room
  // for it. For other callers it stays cold, and the next fetch tries it again.
  enum class Caller : uint8_t {
    kOperation,
    kLease,
    kBeside,  // waits for room that others have, and is no use by the model
  };
  absl::Status Fetch(WindowTensor& tensor, Caller caller = Caller::kOperation,
                     RoomPatience patience = RoomPatience::kLoads);
  // Fetches a tensor for an operation that takes too much at a time, in that
  // operation's turn (room_turn.h). The tensor's bytes move to ordinary memory,
  // if there is any and the caller has the tensor's only pin.
  absl::Status FetchBeyond(WindowTensor& tensor, absl::string_view operation);
  // Refuses a tensor that is not here and has no room now: an operation that
  // looks at it is told why. The next operation tries the tensor again, unless
  // LibTorch cannot use its storage again: then the tensor is failed.
  void RefuseFetch(WindowTensor& tensor, const absl::Status& why);
  // Ends a use: its pin and, if that was the last one, the ordinary memory that
  // the tensor has beyond the window. Trims the window where it is over its
  // bytes. The tensor may have ended when this returns, but the window must
  // not. While the window is not over its bytes, and the tensor not beyond it,
  // the word's Unpin does the same.
  void EndUse(WindowTensor& tensor,
              RoomPatience patience = RoomPatience::kTurn);
  // Begins to bring the tensor, and does not wait for it. This is a hint: it is
  // dropped where its room would have to come from other fetches ahead, or from
  // tensors that operations use.
  void FetchAhead(WindowTensor& tensor);
  // Begins to bring the tensors that the trace says are used next, at most half
  // a window of them, in place of tensors that are used later.
  void FetchUpcoming();
  // Callers that know what is next before the trace does may fetch so many
  // bytes ahead: none once there is a trace.
  int64_t bytes_ahead() const {
    return order_.known() ? 0 : options_.window_bytes / 2;
  }

  // Evicts until the window is back within its bytes, as far as pins allow.
  void Trim();
  // A caller that finds the room over the window's bytes calls Trim.
  WindowRoom& room() { return room_; }
  // Evicts all tensors that are not pinned, and returns how many those were.
  int64_t EvictAll();
  // Lets all tensors that failed be fetched again.
  void Retry();
  // Removes a tensor as Remove does, but first brings its bytes, and puts them
  // into memory of the storage's own. Returns ResourceExhausted when memory has
  // no room for them, or else why they cannot be brought. After an error the
  // tensor stays as it is, and the caller may try again.
  absl::Status MoveOut(WindowTensor& tensor);
  // Removes a tensor as Remove does, and takes its bytes away for good: each
  // use of its storage fails with `why`.
  void Refuse(WindowTensor& tensor, const std::string& why);

  ByteWindowStats stats() const;

 private:
  // Takes room for the tensor in the window, by evictions, or beyond it.
  void Claim(const WindowTensor& tensor);
  absl::StatusOr<Pin> Bring(WindowTensor& tensor, Access access, Caller caller,
                            RoomPatience patience);
  // Begins to bring the tensor, as soon as there is room.
  absl::Status Ask(WindowTensor& tensor, Access access, Caller caller,
                   RoomPatience patience);
  // Makes room in the Runtime for a tensor whose room is claimed already.
  absl::StatusOr<bool> MakeRoom(RoomWait& wait, absl::Time until);
  // Begins a fetch ahead of need. The word is in loading, and this ends that.
  // Returns false when there is no room.
  bool BeginAhead(WindowTensor& tensor, const UseOrder::VictimRule& rule);
  // Brings the tensor. The word is in loading, and this ends that.
  absl::Status Load(WindowTensor& tensor, Caller caller, RoomPatience patience);
  absl::Status Fail(WindowTensor& tensor, const absl::Status& why,
                    Caller caller);
  // Ends a use of a tensor that is beyond the window.
  void EndBeyond(WindowTensor& tensor, RoomPatience patience);
  bool EvictOne(const UseOrder::VictimRule& rule = {});
  void EvictOwned(WindowTensor& tensor);

  Runtime& runtime_;
  const ByteWindowOptions options_;
  WindowRoom room_;
  RuntimeBytes bytes_;
  const OrdinaryMemory ordinary_;
  Spill spill_{bytes_};
  UseOrder order_;
  std::atomic<int64_t> away_ = 0;      // tensors that are not here
  std::atomic<size_t> looked_at_ = 0;  // where FetchUpcoming last looked
  WindowMeter meter_;
};

}  // namespace terrace
