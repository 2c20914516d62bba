#include "libtorch/hook/window/room_wait.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/io_fault.h"

namespace terrace {

namespace {

// An operation in its turn waits so long for a thread that has pins and is
// between two operations: it has the next one soon.
constexpr absl::Duration kBetweenOperations = absl::Milliseconds(3);

}  // namespace

bool IsNoRoom(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && IoFaultOf(status).error == 0;
}

RoomWait::~RoomWait() {
  if (news_ && patience_ == RoomPatience::kTurn) room_.EndLacking();
}

absl::StatusOr<bool> RoomWait::Await(absl::Time until) {
  const bool waits =
      patience_ == RoomPatience::kTurn || patience_ == RoomPatience::kBeside;
  if (waits && !news_) {
    news_.emplace();
    if (patience_ == RoomPatience::kTurn) room_.BeginLacking();
    return true;  // what has ended before is not news
  }
  const absl::Time now = absl::Now();
  in_vain_since_ =
      IsInVain() ? std::min(in_vain_since_, now) : absl::InfiniteFuture();
  const absl::Time end =
      in_vain_since_ + (patience_ == RoomPatience::kTurn ? kBetweenOperations
                                                         : beside_.patience);
  if (waits && now < end) {
    if (now >= until) return false;
    news_->Wait(std::min(until, end));
    return true;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "what is in use at a time takes ", FormatBytes(room_.used_bytes()),
      ", and the budget is ", FormatBytes(room_.most_bytes()),
      patience_ == RoomPatience::kBeside
          ? "; what uses it may be waiting for this"
          : ""));
}

bool RoomWait::IsInVain() const {
  // Operations that have pins may wait for the tensor that a fetch beside them
  // brings.
  if (patience_ == RoomPatience::kBeside && beside_.is_awaited &&
      beside_.is_awaited()) {
    return true;
  }
  return !order_.IsAnyComputing();
}

}  // namespace terrace
