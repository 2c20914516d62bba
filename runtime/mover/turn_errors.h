// What went wrong in a turn: each part adds what it finds, and the mover has it
// told before it goes on, so that a queue's step knows of it in time. Mover
// only.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "runtime/mover/core.h"
#include "runtime/residency/queue_error.h"

namespace terrace {

class TurnErrors {
 public:
  // Which outlives it.
  explicit TurnErrors(Core& core) : core_(core) {}

  // Where they are added.
  std::vector<QueueError>* added() { return &added_; }
  // To their queues, and to the runtime's Stats.
  void Tell();
  // The first one ever.
  const absl::Status& first() const { return first_; }

 private:
  Core& core_;
  std::vector<QueueError> added_;
  absl::Status first_;
};

}  // namespace terrace
