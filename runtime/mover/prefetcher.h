// Fetches what the plan says comes next, into slots that hold nothing needed
// sooner. Of the open queues it looks at those alone that may have something to
// fetch: from a use, a step's begin or the loss of a copy on, until all that
// comes next is there, or nothing that moves or is pinned is in its way. Mover
// only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
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

  // The queue is looked at from here on.
  void Watch(int64_t queue) { watched_.insert(queue); }
  // Of the queues that are watched, and in which no group waits: those come
  // first.
  void Propose(const Customers& customers);
  int64_t watched() const { return static_cast<int64_t>(watched_.size()); }
  // A customer's hints: into room of memory outside the windows, while there is
  // any. Where residents stand in one order, those that are used last and need
  // no write leave for it, but no other that came ahead.
  void Hint(absl::Span<const TensorId> tensors) {
    hints_.insert(hints_.end(), tensors.begin(), tensors.end());
  }
  void ServeHints();

 private:
  // Returns whether something may change by itself that the queue's fetches
  // wait for.
  bool FetchFor(const Customer& customer);
  Reservation RoomForHint(Tensor& tensor) const;

  const PrefetcherParts parts_;
  absl::btree_set<int64_t> watched_;
  std::vector<TensorId> hints_;  // of this turn
};

}  // namespace terrace
