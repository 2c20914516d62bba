// A WindowQueue is a window's queue of bytes (terrace/byte_queue.h): it takes
// groups of tensors for the threads that ask, and says which tensor is to leave
// where the Runtime asks for its pin back.
//
//   queue.Take({a, b}, Access::kUpdate, in_use, deadline)   // waits
//   ...
//   queue.Forget(a);  a's pin ends
//
// A thread that waits in Take answers what is asked for back meanwhile; where
// no thread waits, a thread of the queue's does (terrace/recall_thread.h). A
// tensor that nothing uses leaves at once. One that is in use is wanted, and
// leaves with its last use (residency_word.h). So each pin that was asked for
// ends once.
//
// A pin may be asked for before the thread that takes it has noted it. Such a
// token is kept for as long as a thread waits that had asked before; no other
// may come to note it.
//
// The queue tells the Runtime of uses, before each group and each step, so that
// the Runtime knows the order of these and has the tensors leave first that are
// used last (terrace/byte_queue.h).
//
// What is in use and waits counts as room that does not come: in each request
// the pins that its asker uses, and the tensors between BeginWaiting and
// EndWaiting, whose users wait for something else, or are the program.
//
// A WindowQueue is thread-safe. The Runtime outlives it until Shut.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/window/untold_uses.h"
#include "libtorch/hook/window/window_tensor.h"
#include "terrace/byte_queue.h"
#include "terrace/recall_thread.h"
#include "terrace/runtime.h"

namespace terrace {

class WindowQueue {
 public:
  // `evict` is called with a tensor whose word is the caller's, in evicting. It
  // ends the tensor's pin and the state, and waits for nothing.
  // The queue holds pins of at most `most_bytes`, on the tier of that name.
  WindowQueue(Runtime& runtime, std::string tier, int64_t most_bytes,
              std::function<void(WindowTensor&)> evict)
      : runtime_(runtime),
        tier_(std::move(tier)),
        evict_(std::move(evict)),
        most_bytes_(most_bytes) {}
  ~WindowQueue() { Shut(); }
  WindowQueue(const WindowQueue&) = delete;
  WindowQueue& operator=(const WindowQueue&) = delete;

  // Opens the queue, if it is not open: it is promised so many bytes of the
  // Runtime's. Errors are those of Runtime::OpenBytes and of
  // RecallThread::Start.
  absl::Status Open(int64_t promised_bytes);
  // From here on the queue holds pins of at most so many bytes.
  void HoldAtMost(int64_t bytes);
  // Ends the queue, once a step has begun that is about to. No other call may
  // go on or come after it, but BeginStep and HoldAtMost, which do nothing
  // then.
  void Shut();

  struct Taken {
    std::vector<Pin> pins;  // in the order of the tensors
    WaitCause cause = WaitCause::kNone;
    int64_t beyond_bytes = 0;
    int64_t ahead = 0;  // of these tensors, read before they were asked for
  };
  // Takes all of these tensors or none. Their words are in loading, and the
  // caller's; the queue must be open. `in_use` are tokens of pins that the
  // calling thread uses. Errors are those of ByteQueue.
  absl::StatusOr<Taken> Take(absl::Span<WindowTensor* const> tensors,
                             Access access, absl::Span<const uint64_t> in_use,
                             absl::Time deadline, UseLane lane);
  // The tensor's pin is about to end, and its word is the caller's.
  void Forget(WindowTensor& tensor);

  // Notes a use of a tensor that is here, and tells the Runtime of those noted.
  void NoteUse(const WindowTensor& tensor, UseLane lane);
  void TellUses();
  // Begins a step, which is expected to use what the last one used.
  void BeginStep();

  // Has all tensors leave that are here and not in use; returns how many. Each
  // is taken by itself, as others may end meanwhile.
  int64_t EvictIdle();
  // Returns the bytes, headers included, of the tensors that are here and in
  // use.
  int64_t BytesInUse() const;

  // A user of the tensor waits, or is the program, until EndWaiting. Uses nest.
  void BeginWaiting(const WindowTensor& tensor);
  void EndWaiting(const WindowTensor& tensor);

 private:
  // What a thread waits for that takes a group; the ticket says when it began.
  struct Request {
    uint64_t ticket = 0;
    absl::StatusOr<uint64_t> id;
  };
  Request Push(absl::Span<WindowTensor* const> tensors, Access access,
               absl::Span<const uint64_t> in_use, absl::Time deadline,
               UseLane lane);
  absl::StatusOr<Taken> Await(const Request& request);
  // The thread has its answer: these pins, or none.
  void Note(const Request& request, absl::Span<WindowTensor* const> tensors,
            absl::Span<const Pin> pins);
  // A pin is asked for back.
  void Answer(uint64_t token);

  Runtime& runtime_;
  const std::string tier_;
  const std::function<void(WindowTensor&)> evict_;
  const Process process_;
  OrderedMutex step_mutex_{LockRank::kWindowStep};  // held while one begins
  mutable OrderedMutex mutex_{LockRank::kWindowQueue};
  std::unique_ptr<ByteQueue> queue_;  // set once, before all other uses
  std::unique_ptr<RecallThread> recalls_;
  absl::flat_hash_map<uint64_t, WindowTensor*> tensors_
      ABSL_GUARDED_BY(mutex_);  // by token
  absl::flat_hash_map<const WindowTensor*, int> waiting_
      ABSL_GUARDED_BY(mutex_);
  // Threads that take groups, by ticket; and tokens that were asked for early,
  // with the last ticket at that time.
  std::set<uint64_t> taking_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, uint64_t> early_ ABSL_GUARDED_BY(mutex_);
  uint64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t steps_ ABSL_GUARDED_BY(step_mutex_) = 0;
  std::atomic<int64_t> most_bytes_;
  UntoldUses untold_;
};

}  // namespace terrace
