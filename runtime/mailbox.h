// How the mover's customers talk to it: messages in, answers out. Nothing else
// is shared between their threads and its own. Deadlines are by the runtime's
// clock here, no longer by the wall clock.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"

namespace terrace {

// One answer, awaited by the thread that asked. Shared, because the asker may
// be gone (a deadline) when the mover answers.
template <typename T>
class Reply {
 public:
  void Set(T value) {
    MutexLock lock(mutex_);
    if (!value_.has_value()) value_.emplace(std::move(value));
    changed_.SignalAll();
  }
  // Ends when the mover answers: it answers every message, at the latest
  // when it closes.
  T Await(Clock& clock) {
    MutexLock lock(mutex_);
    clock.Await(
        mutex_, changed_, [this] { return value_.has_value(); },
        absl::InfiniteFuture());
    return std::move(*value_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_;
};

// The customer's end of one queue: what is ready, and how far the mover has
// come. Written by the mover, read by the customer's thread.
class QueuePort {
 public:
  // Mover: hands over what became ready and says whether only the queue's own
  // pins block its head, as of the inbox's message number `processed`;
  // `blocked_also`: the error of a slot that it could have had without.
  void Publish(std::vector<Ready>* ready, bool blocked_by_own_pins,
               uint64_t processed,
               const absl::Status& blocked_also = absl::OkStatus());
  // Nobody takes any more, as the customer closed the queue or the mover the
  // runtime: ends the pins that were never taken, now and from now on.
  void Close();
  bool closed() const;

  // Customer: the next ready group; see RequestQueue::Next. `posted` is the
  // inbox's message number at the call.
  absl::StatusOr<Ready> Take(Clock& clock, uint64_t posted,
                             absl::Time deadline);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mutex_);
  bool blocked_by_own_pins_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status blocked_also_ ABSL_GUARDED_BY(mutex_);
  uint64_t processed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Ends pins that no customer took: nothing was written in them.
template <typename ReadyList>
void EndUntaken(ReadyList& untaken) {
  for (Ready& ready : untaken) {
    if (!ready.pins.ok()) continue;
    for (Pin& pin : *ready.pins) pin.ReleaseUnchanged();
  }
  untaken.clear();
}

struct OpenedQueue {
  int64_t id = -1;
  std::shared_ptr<QueuePort> port;
};

struct RegisterMessage {
  TensorSpec spec;
  std::shared_ptr<Reply<absl::StatusOr<TensorId>>> reply;
};
struct UnregisterMessage {
  TensorId tensor;
  std::shared_ptr<Reply<absl::Status>> reply;
};
struct OpenMessage {
  int64_t slot_bytes = 0;
  int slots = 0;
  absl::Time deadline;
  std::shared_ptr<Reply<absl::StatusOr<OpenedQueue>>> reply;
};
struct CloseQueueMessage {
  int64_t queue = -1;
};
struct PushMessage {
  int64_t queue = -1;
  std::vector<Want> wants;
  uint64_t tag = 0;
  absl::Time deadline;
};
struct EndPinMessage {
  uint64_t token = 0;
  PinEnd end = PinEnd::kPublish;
};
struct StepMessage {
  enum class Kind : uint8_t { kBegin, kCommit, kAbort };
  Kind kind = Kind::kBegin;
  int64_t queue = -1;
  int64_t step = 0;
  std::shared_ptr<Reply<absl::Status>> reply;
};
struct PrefetchMessage {
  std::vector<TensorId> tensors;
};
// An executor task over a host copy ended: hashed for a write, or verified
// after a read.
struct HashedMessage {
  TensorId tensor;
  bool verified = false;
  absl::Status status;
};
// What a path's file gained.
struct GrownMessage {
  int path = -1;
  absl::StatusOr<int64_t> gained_bytes;
};
// A path's file system removed a piece of what killed jobs left.
struct ReclaimedMessage {
  int path = -1;
  bool more = false;
};
// What became of the removal of a path's file.
struct RemovedMessage {
  int path = -1;
  absl::Status status;
};
struct StatsMessage {
  std::shared_ptr<Reply<Stats>> reply;
};
struct CloseMessage {
  absl::Time deadline;
  bool force = false;  // held pins and queues do not refuse it
  std::shared_ptr<Reply<absl::Status>> reply;
};
using Message =
    std::variant<RegisterMessage, UnregisterMessage, OpenMessage,
                 CloseQueueMessage, PushMessage, EndPinMessage, StepMessage,
                 PrefetchMessage, HashedMessage, GrownMessage, ReclaimedMessage,
                 RemovedMessage, StatsMessage, CloseMessage>;

// Messages to the mover, in order. Thread-safe. Shared with every Pin, which
// may outlive the mover.
class Inbox final : public PinOwner {
 public:
  // `wake` is called when a message arrives in an empty box: on the poster's
  // thread, one at a time, under a lock of its own. It must not post.
  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // False: the mover is gone, or this is a forked child, which never had it;
  // the message is dropped.
  bool Post(Message message);
  // What a refused Post means: Cancelled.
  absl::Status Closed() const;
  // False in a forked child. There no method but these three may be called: a
  // thread that the child does not have may hold the lock.
  bool IsOwnProcess() const { return getpid() == process_; }
  void EndPin(uint64_t token, PinEnd end) override {
    Post(EndPinMessage{token, end});
  }
  // Number of the last message posted; they count from 1.
  uint64_t posted() const;

  // Mover: everything that has arrived; returns the last one's number.
  uint64_t Drain(std::deque<Message>* messages);
  // No message is accepted from here on, and wake is not called any more.
  // Returns what nobody has drained: its replies are still owed.
  std::deque<Message> Shut();

 private:
  const pid_t process_ = getpid();
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  // Held while wake runs, so that Shut can promise what it says. Taken before
  // mutex_, never inside it.
  Mutex wake_mutex_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_shut_ ABSL_GUARDED_BY(wake_mutex_) = false;
};

}  // namespace terrace
