#include "runtime/torch/hook/window/room_wait.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/bytes.h"

namespace terrace {

absl::StatusOr<bool> RoomWait::Decide() {
  const int64_t used = room_.used_bytes();
  if (beside_ != nullptr) {
    if (!IsAwaitedTooLong()) return false;
  } else if (used - room_.held_beside() <= room_.most_bytes() ||
             // What was held as it looked may be what it looked for.
             room_.turn() != turn_) {
    return false;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "what is in use at a time takes ", FormatBytes(used),
      ", and the budget is ", FormatBytes(room_.most_bytes()),
      beside_ == nullptr ? "" : "; what uses it may be waiting for this"));
}

bool RoomWait::IsAwaitedTooLong() {
  if (!beside_->is_awaited || !beside_->is_awaited()) {
    awaited_since_ = absl::InfiniteFuture();
    return false;
  }
  const absl::Time now = absl::Now();
  awaited_since_ = std::min(awaited_since_, now);
  return now - awaited_since_ >= beside_->patience;
}

}  // namespace terrace
