// How the mover hears of anything: requests of its customers and events of the
// threads that work for it, in the order in which they came. Nothing else is
// shared between their threads and its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/process.h"
#include "runtime/messages/events.h"
#include "runtime/messages/requests.h"
#include "terrace/pin.h"

namespace terrace {

using Message = std::variant<Request, OwnerRequest, Event>;

// Messages to the mover, in order. Thread-safe. Shared with every Pin, which
// may outlive the mover.
class Inbox final : public PinOwner, public TierEvents {
 public:
  // `wake` is called when a message arrives in an empty box: on the poster's
  // thread, one at a time, under a lock of its own. It must not post.
  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // False: the mover is gone, or this is a forked child, which never had it;
  // the message is dropped.
  bool Post(Message message);
  // Whether no message is accepted any more.
  bool shut() const;
  // What a refused Post means: Cancelled, or why it was shut.
  absl::Status Closed() const;
  // Wakes the mover without a message: something that it polls has ended. Until
  // Shut; on any thread.
  void Wake();
  // False in a forked child. There no method but these three may be called: a
  // thread that the child does not have may hold the lock.
  bool IsOwnProcess() const { return process_.IsCurrent(); }
  void EndPin(uint64_t token, PinEnd end) override {
    Post(EndPinRequest{token, end});
  }
  void OnTier(Grown event) override { Post(std::move(event)); }
  void OnTier(Reclaimed event) override { Post(event); }
  void OnTier(Removed event) override { Post(std::move(event)); }
  // Number of the last message posted; they count from 1.
  uint64_t posted() const;
  // How many of these were of customers.
  int64_t requests() const;

  // Uses of a queue's lane: they join those that have not been read yet, and
  // take their place where these are many.
  bool PostTouch(TouchRequest touch);

  // The last message that the mover has heard: what it says to a keeper
  // (runtime/tensor/image_keeper.h) is kept.
  void NoteHeard(uint64_t number) { heard_ = number; }
  uint64_t heard() const { return heard_; }

  // Mover: everything that has arrived; returns the last one's number.
  uint64_t Drain(std::deque<Message>* messages);
  // The same where each is of customers, needs no link and takes no longer than
  // a group; else nothing, and all of it is for the mover's own thread.
  std::optional<uint64_t> DrainRequests(std::deque<Message>* messages);

  // What is posted from here on wakes nobody until ReleaseWakes: the thread
  // that calls both turns the mover meanwhile. What has arrived by then and was
  // not drained wakes as if it had just come.
  void HoldWakes() { holds_wakes_ = true; }
  void ReleaseWakes();
  // No message is accepted from here on, and wake is not called any more.
  // Returns what was never drained: its replies are still owed. The first one's
  // reason counts.
  std::deque<Message> Shut(
      absl::Status why = absl::CancelledError("the runtime was closed"));

 private:
  void WakeIf(bool was_empty) {
    if (was_empty && !holds_wakes_) Wake();
  }

  const Process process_;
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  // Held while wake runs, so that Shut can promise what it says. Taken before
  // mutex_, never inside it.
  Mutex wake_mutex_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
  // Of those: by queue and lane.
  absl::flat_hash_map<std::pair<int64_t, int>, TouchRequest*> touches_
      ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  // How many there are that DrainRequests leaves.
  int64_t for_mover_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status shut_ ABSL_GUARDED_BY(mutex_);  // OK: it is not
  bool wake_shut_ ABSL_GUARDED_BY(wake_mutex_) = false;
  std::atomic<uint64_t> heard_ = 0;
  std::atomic<bool> holds_wakes_ = false;
};

}  // namespace terrace
