// A place for each tensor of a group, or for none. Mover only.
#pragma once

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/reservation.h"

namespace terrace {

class GroupPlaces {
 public:
  // In the order of a group's wants; empty: it has a place already.
  using Rooms = absl::InlinedVector<Reservation, 4>;

  // All outlive the places.
  GroupPlaces(const WorkingTiers& working, WriteBack& write_back,
              const Transfers& transfers)
      : working_(working), write_back_(write_back), transfers_(transfers) {}

  // A place for every one of the `tensors` that has none. What was taken is
  // given back when a later one has to wait; the group notes what it waits for.
  // Where queues of bytes work as well, a queue has no more pins than slots: a
  // group that would be too much waits for pins of the queue even if its
  // tensors are there. `failure`: of a slot that could not be made free.
  Space Find(const Customer& customer, Group& group,
             absl::Span<Tensor* const> tensors, Rooms* rooms,
             absl::Status* failure, std::vector<QueueError>* errors) const;
  // Where a write-back goes; what comes down from a device goes to memory.
  TierId DrainTier(const Tensor& tensor) const;

 private:
  bool HoldsEnough(const Customer& customer, const Group& group) const;
  void NoteDrain(const FoundPlace& found, Group& group) const;

  const WorkingTiers& working_;
  WriteBack& write_back_;
  const Transfers& transfers_;
};

}  // namespace terrace
