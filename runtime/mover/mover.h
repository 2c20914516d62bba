// The one owner of all motion: its parts, and the order of a turn. It reads
// messages, admits groups, chooses what leaves, begins and reaps transfers and
// publishes what is ready. It hashes, copies and computes nothing: that is the
// executor's.
//
// RunOnce() is one deterministic turn: it never blocks, and nothing else
// touches the parts. In production a thread calls it; in a test the test does.
// Calls go down, results come up as values, nothing calls back.
//
// A thread that waits for the answer to what it has posted may hear it by
// RunRequests(), while the mover's own sleeps in Wait: by runtime/crank.h there
// is one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/messages/inbox.h"
#include "runtime/mover/core.h"
#include "runtime/mover/lost_device.h"
#include "runtime/mover/turn_errors.h"

namespace terrace {

class Mover {
 public:
  explicit Mover(CoreParts parts) : core_(std::move(parts)) {}
  // The executor's tasks refer to the arena and to the inbox, never to the
  // mover; the caller drains the executor before it frees the arena.
  ~Mover();

  const std::shared_ptr<Inbox>& inbox() { return core_.inbox; }
  // A client opens its port here. Thread-safe.
  Ports& ports() { return core_.ports; }

  // One turn; returns the time of its next event: now, when there is more to
  // do at once; InfiniteFuture, when only a message or a move's end can bring
  // more.
  absl::Time RunOnce();
  // Another thread's: a turn that only hears customers' requests and serves
  // them. What has ended on links it does not hear, and what it begins there
  // goes on in the next whole turn. Returns as RunOnce does: now, where one is
  // due, for links or for what has arrived and is the mover's own.
  absl::Time RunRequests();
  // Sleeps until a message, a move's end, or `deadline`.
  void Wait(absl::Time deadline) { core_.links.Wait(deadline); }

  bool closed() const { return core_.closing.ended(); }
  // Closed past its deadline or with pins held: the arena may still be used, so
  // it must be leaked.
  bool abandoned() const { return core_.closing.abandoned(); }
  // Once the inbox refuses messages: what was true at the end. Thread-safe.
  const Stats& final_stats() const { return core_.closing.final_stats(); }

  const TensorTable& table() const { return core_.table; }
  absl::Status CheckInvariants() const {
    return core_.report().CheckInvariants();
  }

 private:
  // What one turn has at hand.
  struct Turn {
    std::vector<Moved> moved;
    std::vector<Arrival> arrivals;
    std::deque<Message> messages;
    uint64_t processed = 0;  // messages
  };

  // What a message means for the parts.
  void Hear(Request& request);
  void Hear(OwnerRequest& request);
  void Hear(Event& event);
  void Open(OpenRequest& request);
  void CloseQueue(const CloseQueueRequest& request);
  void EndPin(const EndPinRequest& request);
  absl::Status ChangeStep(const StepRequest& request);
  void Close(CloseRequest& request);
  void OnSealed(const Sealed& event);
  void OnChecked(const Checked& event);

  void PollLinks();
  // What is to be heard of the inbox is in turn_.
  void HearMessages();
  // Everything that a runtime does which is not being closed. True: there is
  // more to do at once, as a write-back was given up, so that a head may have
  // its slot now, or as more may leave.
  bool Serve(absl::Time now);
  void AdvanceClosing(absl::Time now);
  void HearArrivals();
  void Hear(const Arrival& arrival);
  void OnFetchGone(const Arrival& arrival);
  void Lose(Tensor& tensor, const absl::Status& why);

  Core core_;
  LostDevice lost_device_{core_.table, core_.working};
  TurnErrors errors_{core_};
  Turn turn_;
};

}  // namespace terrace
