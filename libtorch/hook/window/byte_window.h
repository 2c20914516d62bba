// A ByteWindow keeps tensors of any sizes in memory, within a window of so many
// bytes, and the others below. It fetches the tensors that an operation needs,
// and evicts for them those whose next use is latest, as far as that is known
// (use_order.h).
//
// The window is a customer of a Runtime by one queue of bytes: each tensor is
// one of the Runtime's, which has it pinned for as long as the storage has its
// bytes there. An eviction ends the pin: the tensor is published if it was
// written to, else it is unchanged, which costs nothing. An evicted tensor
// stays in memory until its room is taken, and comes back without a read. Where
// others need the room that the window has, the Runtime asks for pins back, and
// those tensors leave as soon as nothing uses them (window_queue.h).
//
// Tensors exceed the window only where those that are pinned at a time do, and
// as far as the Runtime has room for them; Trim gives that room back. Where all
// that hold pins wait, the Runtime has a group beyond its budget, in ordinary
// memory, until the uses of the group's tensors end.
//
// A tensor that a tier fails to bring to an operation stays failed until Retry,
// and every use of it is told why. A fetch that finds no room leaves its tensor
// as it was. No call waits for ever: ByteWindowOptions::patience is how long a
// fetch may wait for room.
//
// A ByteWindow is thread-safe. A tensor outlives its stay, from Add to Remove,
// and the Runtime outlives the window or its Shut, and every stay.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libtorch/hook/window/ordinary_memory.h"
#include "libtorch/hook/window/window_pins.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/machine.h"
#include "terrace/runtime.h"

namespace terrace {

struct ByteWindowOptions {
  int64_t window_bytes = 0;          // headers included
  int64_t beyond_bytes = INT64_MAX;  // in ordinary memory, at most
  absl::Duration patience = absl::Minutes(5);
  // A tensor that is to leave clean is compared with the bytes that came; one
  // that differs is written back, and always is from then on.
  bool verify_clean = false;
  // Returns how much ordinary memory is available for tensors that move out of
  // the window.
  std::function<int64_t()> available_bytes = AvailableMemoryBytes;
};

class ByteWindow {
 public:
  using Asker = FetchAsker;
  using Caller = FetchAsker::Caller;
  using Tensors = WindowPins::Tensors;

  ByteWindow(Runtime& runtime, const ByteWindowOptions& options);

  // Registers all of these tensors, or none. They are cold then and have no
  // contents: until Fill, only Fill and Remove may be called for them. Errors
  // are Runtime::Register's; paths that all refuse are tried once more before
  // it fails.
  absl::Status Add(absl::Span<WindowTensor* const> tensors);
  // Copies the tensor's bytes from `source` and installs them; the tensor is
  // resident from then on. The caller has it pinned, or it enters. After an
  // error the tensor is as before; it is told of no room where it would be
  // beyond the budget.
  absl::Status Fill(WindowTensor& tensor, const std::byte* source,
                    const Asker& asker = {});
  // Forgets a tensor and its contents. Only the thread that makes the tensor
  // enter or leave (Life) calls this.
  void Remove(WindowTensor& tensor);
  // Does the same for a tensor whose word is the caller's.
  void RemoveOwned(WindowTensor& tensor);

  // A use is noted by a thread that has the tensor pinned.
  UseOrder& order() { return pins_.order(); }
  // Brings all of these tensors as one group, or waits for the threads that do;
  // the caller has them pinned. Returns OK once all are resident, else why one
  // is not. A tensor that an operation asked for is refused then, and its bytes
  // say why to whoever looks at them; unless there was no room for it, it is
  // failed. For other callers it stays cold, and the next fetch tries it again.
  absl::Status Fetch(const Tensors& tensors, const Asker& asker = {});
  // Ends a use: the tensor leaves if it is wanted and this was its last. Trims
  // the window where it is over its bytes. The tensor may have ended when this
  // returns, but the window must not. While the window is not over its bytes
  // EndLastUse does the same, where the word's Unpin returned true.
  void EndUse(WindowTensor& tensor);
  // The tensor's word is the caller's, in evicting; it is given back.
  void EndLastUse(WindowTensor& tensor) { pins_.Evict(tensor); }
  // Between these two a user of the tensor waits, or is the program.
  void BeginWaiting(const WindowTensor& tensor) {
    pins_.queue().BeginWaiting(tensor);
  }
  void EndWaiting(const WindowTensor& tensor) {
    pins_.queue().EndWaiting(tensor);
  }
  // Begins to bring the tensor, and does not wait for it. This is a hint: it is
  // dropped where its room would have to come from other fetches ahead, or from
  // tensors that operations use.
  void FetchAhead(WindowTensor& tensor);
  // Begins to bring the tensors that the trace says are used next, at most half
  // a window of them, in place of tensors that are used later.
  void FetchUpcoming();
  // Callers that know what is next before the trace does may fetch so many
  // bytes ahead: none once there is a trace.
  int64_t bytes_ahead() {
    return order().known() ? 0 : options_.window_bytes / 2;
  }

  // Evicts until the window is back within its bytes, as far as pins allow.
  void Trim() { pins_.Trim(); }
  // A caller that finds the room over the window's bytes calls Trim.
  WindowRoom& room() { return pins_.room(); }
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

  // The Runtime is not used any more. There are no tensors, and no other calls
  // that wait.
  void Shut() { pins_.queue().Shut(); }

  ByteWindowStats stats() const;

 private:
  // Begins a fetch ahead of need. The word is in loading, and this ends that.
  // Returns false when there is no room.
  bool BeginAhead(WindowTensor& tensor, const UseOrder::VictimRule& rule);

  Runtime& runtime_;
  const ByteWindowOptions options_;
  WindowPins pins_;
  const OrdinaryMemory ordinary_;
  std::atomic<size_t> looked_at_ = 0;  // where FetchUpcoming last looked
};

}  // namespace terrace
