#include "optimizer/step/ordered_step.h"

#include <algorithm>

#include "base/floating_point.h"

namespace terrace {

bool OrderedStep::Advance() {
  if (!guard_.IsOwnProcess()) return true;
  const DefaultFloatingPoint mode;
  return running_.Advance();
}

void OrderedStep::Wait(absl::Time until) {
  if (!guard_.IsOwnProcess() || !running_.is_running()) return;
  const DefaultFloatingPoint mode;
  if (running_.Wait(std::min(clock_.FromWall(until), deadline_))) return;
  if (clock_.Now() >= deadline_) running_.OnDeadline();
}

absl::Status OrderedStep::result() const {
  if (!guard_.IsOwnProcess()) return guard_.CheckUsable();
  return running_.result();
}

void OrderedStep::TakeStepped(std::vector<int>* parameters) {
  if (guard_.IsOwnProcess()) running_.TakeStepped(parameters);
}

void OrderedStep::Hasten(int parameter) {
  if (guard_.IsOwnProcess()) running_.Hasten(parameter);
}

}  // namespace terrace
