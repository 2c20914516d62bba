#include "libtorch/step/late/late_steps.h"

#include <c10/util/Exception.h>

#include <utility>

#include "base/status_macros.h"

namespace terrace {

LateSteps::~LateSteps() {
  if (!HasStep() || is_told_) return;
  if (const absl::Status status = updates_->Wait(); !status.ok()) {
    TORCH_WARN(
        "terrace: an optimizer is gone whose last updates failed, so that some "
        "of its parameters are those before the step: ",
        status.message());
  }
}

bool LateSteps::HasStep() {
  // A forked child has none of the threads, and the fork waited for the
  // updates.
  if (!process_.IsCurrent()) static_cast<void>(updates_.release());
  return updates_ != nullptr;
}

absl::Status LateSteps::Begin(LateArguments arguments) {
  arguments.order = order_;
  is_told_ = false;
  TERRACE_ASSIGN_OR_RETURN(
      updates_, LateUpdates::Begin(optimizer_, std::move(arguments)));
  return absl::OkStatus();
}

absl::Status LateSteps::Wait() {
  return HasStep() ? updates_->Wait() : absl::OkStatus();
}

absl::Status LateSteps::Settle() {
  if (!HasStep()) return absl::OkStatus();
  return End(updates_->Wait());
}

absl::Status LateSteps::Flush(absl::Time deadline) {
  if (!HasStep()) return absl::OkStatus();
  if (!updates_->AwaitEnd(deadline)) {
    return absl::DeadlineExceededError(
        "a step's updates go on after the deadline of the call that waits for "
        "them");
  }
  const bool was_told = is_told_;
  absl::Status status = Settle();
  if (status.ok() || !was_told) return status;
  return End(updates_->Retry(deadline));
}

absl::Status LateSteps::End(absl::Status status) {
  const bool is_forgotten = !status.ok() && !absl::IsDataLoss(status) &&
                            !optimizer_.incomplete() && !updates_->is_stepped();
  if (!status.ok() && !is_forgotten) {
    is_told_ = true;
    return status;
  }
  order_ = updates_->order();
  GiveUp();
  return absl::OkStatus();
}

void LateSteps::GiveUp() {
  if (HasStep()) {
    waited_ += updates_->waited();
    updates_.reset();
  }
  is_told_ = false;
}

}  // namespace terrace
