// A runtime that goes on where another was, over the same memory and files, by
// what a keeper has of that one: tensors, queues and pins are what they were,
// with their numbers, and pinned bytes lie where they lay. The order of uses is
// learnt anew. Mover only; before anything else is asked for.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/threads/heartbeat.h"
#include "prefetch/trace_planner.h"
#include "runtime/messages/requests.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/mover/byte_admission.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/lent_room.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "tiers/memory/spill/spill_room.h"

namespace terrace {

// All outlive the restoration.
struct RestorationParts {
  Heartbeat* heartbeat = nullptr;  // the mover's
  ImageKeeper* keeper = nullptr;   // null: nobody keeps the image
  TensorTable* table = nullptr;
  RestingTiers* resting = nullptr;
  TierResidency* memory = nullptr;  // the first
  SpillRoom* spill = nullptr;
  LentRoom* lent = nullptr;
  PinBook* pins = nullptr;
  BytePins* byte_pins = nullptr;
  TracePlanner* planner = nullptr;
  Customers* customers = nullptr;
  ByteAdmission* byte_admission = nullptr;
  WriteBack* write_back = nullptr;
};

class Restoration {
 public:
  explicit Restoration(RestorationParts parts) : parts_(parts) {}

  // DataLoss, which names what is wrong: two things in one place, or one that
  // is nowhere. The runtime is of no use then, and has written nothing.
  absl::Status Restore(const RestoreRequest& request);

 private:
  absl::Status RestoreQueues(const RestoreRequest& request);
  absl::Status OpenWindow(const QueueImage& queue, ClientId client);
  absl::Status RestoreTensor(TensorImage image, bool is_pinned);
  absl::Status RestorePin(const PinImage& pin, ClientId client);
  // Where the image's copy is; empty, and OK: there is none.
  absl::StatusOr<Reservation> PlaceOf(const TensorImage& image) const;
  absl::StatusOr<Reservation> RoomOf(const TensorImage& image,
                                     Tensor& tensor) const;

  const RestorationParts parts_;
};

}  // namespace terrace
