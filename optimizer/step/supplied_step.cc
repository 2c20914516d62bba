#include "optimizer/step/supplied_step.h"

#include "absl/strings/str_cat.h"
#include "base/floating_point.h"
#include "base/status_macros.h"

namespace terrace {

SuppliedStep::~SuppliedStep() { GiveUp("it was not finished"); }

absl::Status SuppliedStep::Supply(int parameter, const void* gradient,
                                  DType dtype) {
  TERRACE_RETURN_IF_ERROR(Advance());
  if (done_ || supply_ended_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", parameter, ": the step takes no more gradients"));
  }
  TERRACE_RETURN_IF_ERROR(running_.Supply(parameter, gradient, dtype));
  return Advance();
}

absl::Status SuppliedStep::EndSupply() {
  TERRACE_RETURN_IF_ERROR(Advance());
  if (!done_ && !supply_ended_) running_.EndSupply();
  supply_ended_ = true;
  return Advance();
}

absl::Status SuppliedStep::Advance() {
  if (!guard_.IsOwnProcess()) return guard_.CheckUsable();
  const DefaultFloatingPoint mode;
  if (!done_ && running_.Advance()) {
    done_ = true;
    result_ = running_.result();
  }
  return done_ ? result_ : absl::OkStatus();
}

void SuppliedStep::TakeStepped(std::vector<int>* parameters) {
  if (guard_.IsOwnProcess()) running_.TakeStepped(parameters);
}

absl::Status SuppliedStep::Finish(absl::Time deadline) {
  const absl::Time end = clock_.FromWall(deadline);
  TERRACE_RETURN_IF_ERROR(EndSupply());
  while (!done_) {
    if (!running_.Wait(end)) running_.OnDeadline();
    TERRACE_RETURN_IF_ERROR(Advance());
  }
  return result_;
}

void SuppliedStep::GiveUp(absl::string_view why) {
  if (done_ || !guard_.IsOwnProcess()) return;
  running_.GiveUp(absl::CancelledError(why));
  Advance().IgnoreError();
}

}  // namespace terrace
