// Queues that wait for the room of their windows, first in, first out over all
// working tiers. A device's window takes staging in memory too: the first that
// waits has it while it waits for the rest, so that what leaves the device for
// it may pass through. Mover only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "prefetch/trace_planner.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"

namespace terrace {

// All outlive the opener.
struct WindowOpenerParts {
  const Ports* ports = nullptr;
  Customers* customers = nullptr;
  TracePlanner* planner = nullptr;
  const WorkingTiers* working = nullptr;
  StagingRoom* staging = nullptr;
  BytePins* byte_pins = nullptr;  // asked for back where nothing else leaves
  WriteBack* write_back = nullptr;
  const Transfers* transfers = nullptr;
};

class WindowOpener {
 public:
  explicit WindowOpener(WindowOpenerParts parts) : parts_(parts) {}

  // Refused at once where there is no such tier, or all windows together exceed
  // the budget. True: it waits for room.
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
    uint64_t number = 0;  // as groups have one
    TierId tier = kDramTier;
    int64_t bytes = 0;
    int64_t staging_bytes = 0;
    StagingRoom::Lease staging;  // once it has it

    // Of what it waits for.
    TierId wants() const {
      return staging_bytes > 0 && staging.empty() ? kDramTier : tier;
    }
  };
  // OK: they fit beside all open windows.
  absl::Status CheckBudget(const Opening& opening) const;
  absl::Status CheckOne(const Opening& opening, TierId tier,
                        int64_t bytes) const;
  // False: it waits; `hope` says whether for anything.
  bool TryOpen(Opening& opening, bool* hope, std::vector<QueueError>* errors);
  // Empty: `hope` says whether more may come later.
  Reservation MakeRoom(TierId tier, int64_t bytes, bool* hope,
                       std::vector<QueueError>* errors);
  void AskForPins(const Opening& opening) const;
  bool MayCome(TierId tier, int64_t bytes) const;
  void HoldRoom() const;
  void RefuseOne(const Opening& opening, const std::string& holders) const;

  const WindowOpenerParts parts_;
  std::deque<Opening> openings_;
};

}  // namespace terrace
