#include "optimizer/state/state_guard.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {

absl::Status StateGuard::CheckUsable() const {
  if (IsOwnProcess()) return poison_;
  return absl::CancelledError(
      absl::StrCat("optimizer '", name_, "' belongs to process ", process_.id(),
                   "; a forked child cannot use it"));
}

absl::Status StateGuard::CheckFree(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  if (!reading_ && !writing_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " while the state is ", reading_ ? "read" : "written"));
}

absl::Status StateGuard::CheckLoaded(absl::string_view what) const {
  if (!half_loaded_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, ": the last load of the state ended half-way; load it again"));
}

}  // namespace terrace
