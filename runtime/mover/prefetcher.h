// Fetches what the plan says comes next, into slots that hold nothing needed
// sooner. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "prefetch/trace_planner.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/tensor/tensor_table.h"

namespace terrace {

// All outlive the prefetcher.
struct PrefetcherParts {
  const TensorTable* table = nullptr;
  const TracePlanner* planner = nullptr;
  const WorkingTiers* working = nullptr;
  Transfers* transfers = nullptr;
  Admission* admission = nullptr;
  bool enabled = true;
};

class Prefetcher {
 public:
  explicit Prefetcher(PrefetcherParts parts) : parts_(parts) {}

  // Of a queue in which no group waits: those come first.
  void Propose(const Customer& customer);
  // A customer's hints: into room of memory outside the windows, while there is
  // any. Where residents stand in one order, those that are used last and need
  // no write leave for it, but no other that came ahead.
  void Hint(absl::Span<const TensorId> tensors) {
    hints_.insert(hints_.end(), tensors.begin(), tensors.end());
  }
  void ServeHints();

 private:
  Reservation RoomForHint(Tensor& tensor) const;

  const PrefetcherParts parts_;
  std::vector<TensorId> hints_;  // of this turn
};

}  // namespace terrace
