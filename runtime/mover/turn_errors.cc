#include "runtime/mover/turn_errors.h"

namespace terrace {

void TurnErrors::Tell() {
  for (const QueueError& error : added_) {
    if (error.unwritten != nullptr) {
      const Customer* const customer = core_.customers.FindOpen(error.queue);
      const bool between_steps = customer != nullptr && !customer->step;
      core_.write_back.SetUnsaid(*error.unwritten,
                                 between_steps ? error.queue : -1);
    }
    // What is cancelled by a Close reads and writes a file that goes.
    if (core_.closing.begun() || absl::IsCancelled(error.status)) continue;
    if (first_.ok()) first_ = error.status;
    core_.customers.Report(error.queue, error.status);
  }
  added_.clear();
}

}  // namespace terrace
