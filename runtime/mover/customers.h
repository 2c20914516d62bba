// The mover's end of the queues: what each has pushed and waits for, its step,
// and what is ready for it. Many may be open and idle: a turn looks at those
// alone that are active. Mover only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/io_transfer.h"
#include "base/clock.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/motion/transcript.h"
#include "runtime/residency/byte_room.h"
#include "runtime/residency/window.h"
#include "runtime/tensor/wanted_tensors.h"

namespace terrace {

// By which a group asks for pins in memory on its way to a device: nobody
// else's number.
constexpr uint64_t PassageNumber(uint64_t group) {
  return group | uint64_t{1} << 62;
}

// Tensors that are asked for together: all or none.
struct Group {
  uint64_t id = 0;
  uint64_t tag = 0;
  std::vector<Want> wants;
  std::vector<uint64_t> in_use;  // at a queue of bytes: pins that wait with it
  int lane = 0;                  // likewise: of its uses
  RoomSeeker room;               // likewise
  RoomSeeker passage;            // likewise: in memory, on the way to a device
  std::vector<bool> held;        // per want, once admitted
  absl::Time deadline;
  int missing = 0;     // copies that are not whole yet, once admitted
  absl::Time at_head;  // when it became the head of its queue
  absl::Time admitted;
  bool headed = false;
  // Of its fetches: whether all of it was foreseen.
  IoClass io_class = IoClass::kDemand;
  bool waited_for_write = false;
  // Where the last write-back goes, or went, that it waited for.
  TierId drain = kNoTier;
  bool fetched = false;
  int64_t ahead = 0;  // of its tensors, fetched before they were asked for
  bool tried_writes = false;  // those that failed, for its room
  absl::Status failure;
};

// What a queue of bytes has in place of a window.
struct ByteShare {
  int64_t window_bytes = 0;
  std::shared_ptr<ByteSink> port;
  std::vector<uint64_t> recalls;  // until published
};

struct Customer {
  int64_t id = -1;
  ClientId client = kLocalClient;  // whose it is
  TierId tier = kDramTier;         // where its window is and its pins are given
  Window* window = nullptr;        // with the port, or else the share
  std::shared_ptr<QueueSink> port;
  std::optional<ByteShare> bytes;
  std::map<uint64_t, Group> waiting;  // by id, which is first in first out
  std::set<std::pair<absl::Time, uint64_t>> deadlines;  // of those waiting
  int admitted = 0;                                     // of its groups
  std::vector<ReadyGroup> ready;                        // until published
  std::optional<int64_t> step;                          // that is open
  absl::Status first_error;                             // of the open step
  int held_pins = 0;
  int coming_pins = 0;  // of its groups that are admitted
  // Since when it has groups that are not ready and no pin; InfiniteFuture: it
  // is not so.
  absl::Time blocked_since = absl::InfiniteFuture();
  bool blocked_by_own_pins = false;
  absl::Status blocked_also;  // then: of a slot that failed
  bool closed = false;
};

class Customers {
 public:
  struct Older {
    bool operator()(const Customer* a, const Customer* b) const {
      return a->id < b->id;
    }
  };
  // One that is added while the set is gone through harms nobody.
  using Active = std::set<Customer*, Older>;

  // All outlive the customers; `transcript` and `keeper` may be null.
  Customers(Clock& clock, const Ports& ports, Transcript* transcript,
            ImageKeeper* keeper = nullptr)
      : clock_(clock),
        ports_(ports),
        transcript_(transcript),
        keeper_(keeper) {}

  Customer& Open(Window& window, ClientId client = kLocalClient);
  Customer& OpenBytes(int64_t window_bytes, TierId tier, ClientId client);
  // The next queue is that one; none of those below it is given again.
  void SkipTo(int64_t next) { next_customer_ = std::max(next_customer_, next); }
  // A queue that was closed before, of which there are pins only.
  Customer& RestoreClosed(TierId tier, ClientId client);
  // Nothing more of it is served; it stays for its pins and for the fetches
  // that still end in it.
  void Close(Customer& customer);
  // From here on nothing is served.
  void CloseAll();

  Customer* FindOpen(int64_t id) const;  // null: closed, or none
  Customer* Find(int64_t id) const;      // null: none
  const std::vector<Customer*>& open() const { return open_; }
  // Of those, the ones that have groups which wait or are admitted, or had some
  // or news since the last Publish.
  const Active& active() const { return active_; }

  // Of what waits, by age: each group's, and others'.
  uint64_t NextNumber() { return next_number_++; }
  void Push(Customer& customer, PushRequest request);
  void PushBytes(Customer& customer, PushBytesRequest request);
  // The group is admitted, or failed.
  void EraseWaiting(Customer& customer, uint64_t group);
  // The wants of a group that is admitted, until it is ready or its queue
  // closed.
  void KeepWants(const Group& group) { wanted_.Add(group.wants); }
  void DropWants(const Group& group) { wanted_.Remove(group.wants); }
  const WantedTensors& wanted() const { return wanted_; }

  void AddReady(Customer& customer, ReadyGroup ready);
  void AddRecall(Customer& customer, uint64_t token);
  void Fail(Customer& customer, const Group& group, absl::Status status);
  void NoteIfEnded(const Customer& customer);
  // Hands over what is ready, as of message number `processed`; returns the
  // queues that have ended and are gone.
  std::vector<int64_t> Publish(uint64_t processed);

  absl::Time NextDeadline() const;
  // The step that is open there hears of it.
  void Report(int64_t queue, const absl::Status& status);
  // OK, or what is wrong with a step's begin or end.
  static absl::Status CheckStep(const Customer& customer,
                                const StepRequest& request);

 private:
  Customer& Add(TierId tier, ClientId client);
  void Add(Customer& customer, Group group);
  void DropWaiting(Customer& customer);

  Clock& clock_;
  const Ports& ports_;
  Transcript* const transcript_;
  ImageKeeper* const keeper_;
  std::unordered_map<int64_t, std::unique_ptr<Customer>> customers_;
  std::vector<Customer*> open_;  // in the order they came
  Active active_;
  std::vector<int64_t> ended_;  // closed, without pins or fetches
  WantedTensors wanted_;        // by groups of open queues
  int64_t next_customer_ = 0;
  uint64_t next_number_ = 1;
};

}  // namespace terrace
