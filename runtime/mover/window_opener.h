// Queues that wait for the room of their windows, first in, first out. Mover
// only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "prefetch/trace_planner.h"
#include "runtime/messages/requests.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/residency/write_back.h"

namespace terrace {

// All outlive the opener.
struct WindowOpenerParts {
  Customers* customers = nullptr;
  TracePlanner* planner = nullptr;
  TierResidency* residency = nullptr;
  WriteBack* write_back = nullptr;
  const Transfers* transfers = nullptr;
};

class WindowOpener {
 public:
  explicit WindowOpener(WindowOpenerParts parts) : parts_(parts) {}

  // Refused at once where all windows together exceed the budget. True: it
  // waits for room.
  bool Add(OpenRequest request);
  // Opens as many as there is room for; `holders` says what has the rest.
  void Serve(absl::Time now, const std::function<std::string()>& holders,
             std::vector<QueueError>* errors);
  absl::Time NextDeadline() const;
  // All that wait are told `why`.
  void Refuse(const absl::Status& why);

 private:
  struct Opening {
    OpenRequest request;
    int64_t bytes = 0;
  };
  // Empty: `hope` says whether more may come later.
  Reservation MakeRoom(int64_t bytes, bool* hope,
                       std::vector<QueueError>* errors);
  void RefuseOne(const Opening& opening, const std::string& holders) const;

  const WindowOpenerParts parts_;
  std::deque<Opening> openings_;
};

}  // namespace terrace
