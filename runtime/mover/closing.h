// The end of a runtime: open, refusing, draining, and ended or abandoned. It
// is refused while anything is held; the rest waits for transfers in flight and
// for files to be removed, until its deadline. Mover only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/ports.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transfers.h"
#include "runtime/residency/working_tiers.h"
#include "terrace/stats.h"
#include "tiers/memory/spill/spill_room.h"

namespace terrace {

// All outlive the closing.
struct ClosingParts {
  Links* links = nullptr;
  Transfers* transfers = nullptr;
  RestingTiers* resting = nullptr;
  const WorkingTiers* working = nullptr;
  SpillRoom* spill = nullptr;
  Inbox* inbox = nullptr;
  const Ports* ports = nullptr;
};

class Closing {
 public:
  explicit Closing(ClosingParts parts) : parts_(parts) {}

  // From the first Close on nothing starts; what is pinned stays as it is.
  bool begun() const { return begun_; }
  bool ended() const { return ended_; }
  // Ended past its deadline, or with pins held: memory may still be used, so it
  // must be leaked.
  bool abandoned() const { return abandoned_; }
  const Stats& final_stats() const { return final_stats_; }
  absl::Time NextDeadline() const;

  // True: it is the first.
  bool Add(CloseRequest request);
  // Pins never taken end by that message: holders are known after.
  void WaitFor(uint64_t message) { after_ = message; }
  // Refuses the requests that are not forced while `holders` are left; then
  // gives the files back and waits, until the first of all deadlines. True: it
  // is time to end.
  bool Advance(absl::Time now, uint64_t processed, const std::string& holders);
  // Answers all requests; `stats` is what is true now.
  void End(bool pinned, Stats stats);

  static absl::Status Closed();

 private:
  int64_t MemoryBytes() const;
  bool quiet() const {
    return parts_.links->pending() == 0 && parts_.transfers->tasks() == 0;
  }
  absl::Status Result() const;
  void Answer(const std::deque<Message>& left,
              const absl::Status& result) const;
  // Nothing waits for the answer to a request without an id.
  template <typename Body>
  void Refuse(const Body& request) const {
    if constexpr (requires { request.id; }) {
      parts_.ports->Deliver(request.id, Closed());
    }
  }

  const ClosingParts parts_;
  std::vector<CloseRequest> requests_;  // not answered yet
  uint64_t after_ = 0;                  // not before this message
  bool begun_ = false;
  bool ended_ = false;
  bool abandoned_ = false;
  Stats final_stats_;
};

}  // namespace terrace
