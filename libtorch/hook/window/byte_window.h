// A ByteWindow keeps tensors of any sizes in memory, within a window of so many
// bytes, and the others below. It fetches the tensors that an operation needs.
//
// The window is a customer of a Runtime by one queue of bytes: each tensor is
// one of the Runtime's, which has it pinned for as long as the storage has its
// bytes there. The window tells the Runtime of uses, and the Runtime says which
// tensor leaves: it asks for pins back that are used last, where the window has
// more than its bytes, or others need the room. Those tensors leave as soon as
// nothing uses them (window_queue.h). What comes next the Runtime reads ahead.
// An eviction ends the pin: the tensor is published if it was written to, else
// it is unchanged, which costs nothing. An evicted tensor stays in memory until
// its room is taken, and comes back without a read.
//
// Tensors exceed the window only where those that are in use at a time do, and
// as far as the Runtime has room for them. Where all that hold pins wait, the
// Runtime has a group beyond its budget, in ordinary memory, until the uses of
// the group's tensors end.
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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "libtorch/hook/window/ordinary_memory.h"
#include "libtorch/hook/window/window_pins.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/machine.h"
#include "terrace/runtime.h"

namespace terrace {

// Returns the bytes of the working tier of that name; "" is the first memory.
// There is none, or it has none: 0.
int64_t TierBudget(const Runtime& runtime, absl::string_view tier);

struct ByteWindowOptions {
  std::string tier = {};             // as Runtime::OpenBytes has it
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

  // Notes a use of a tensor that is here, by a thread that has it pinned. What
  // is fetched, or filled, is used thereby.
  void NoteUse(const WindowTensor& tensor, Caller caller) {
    pins_.queue().NoteUse(tensor, Asker::LaneOf(caller));
  }
  // Begins a step, which is expected to use what the last one used.
  void BeginStep();
  // Brings all of these tensors as one group, or waits for the threads that do;
  // the caller has them pinned. Returns OK once all are resident, else why one
  // is not. A tensor that an operation asked for is refused then, and its bytes
  // say why to whoever looks at them; unless there was no room for it, it is
  // failed. For other callers it stays cold, and the next fetch tries it again.
  absl::Status Fetch(const Tensors& tensors, const Asker& asker = {});
  // Ends a use: the tensor leaves if it is wanted and this was its last. The
  // tensor, and the window with it, may have ended when this returns.
  void EndUse(WindowTensor& tensor) {
    if (tensor.word().Unpin()) pins_.Evict(tensor);
  }
  // Between these two a user of the tensor waits, or is the program.
  void BeginWaiting(const WindowTensor& tensor) {
    pins_.queue().BeginWaiting(tensor);
  }
  void EndWaiting(const WindowTensor& tensor) {
    pins_.queue().EndWaiting(tensor);
  }
  // Begins to bring those of the tensors that are away, and does not wait for
  // them. This is a hint: what there is no room for is dropped.
  void FetchAhead(absl::Span<const WindowTensor* const> tensors);
  // Callers that know what is next before the Runtime does may fetch so many
  // bytes ahead: none once a step has gone before.
  int64_t bytes_ahead() const {
    return steps_.load(std::memory_order_relaxed) > 1
               ? 0
               : pins_.room().window_bytes() / 2;
  }

  WindowRoom& room() { return pins_.room(); }
  // From here on the window has so many bytes, and operations may have
  // `most_bytes`.
  void Resize(int64_t window_bytes, int64_t most_bytes);
  // Evicts all tensors that are not pinned, and returns how many those were.
  int64_t EvictAll() { return pins_.queue().EvictIdle(); }
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
  // that wait. Waits for what a device was given, as long as the patience is;
  // DeadlineExceeded: it has not done it by then.
  absl::Status Shut() { return pins_.Shut(absl::Now() + options_.patience); }
  // Waits, as long, for what a device was given with tensors that have left:
  // until then their names stay taken.
  void AwaitLeft() { pins_.AwaitEnds(absl::Now() + options_.patience); }

  ByteWindowStats stats() const;

 private:
  Runtime& runtime_;
  const ByteWindowOptions options_;
  WindowPins pins_;
  const OrdinaryMemory ordinary_;
  std::atomic<int64_t> steps_ = 0;  // that were begun
};

}  // namespace terrace
