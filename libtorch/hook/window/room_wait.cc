#include "libtorch/hook/window/room_wait.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/io_fault.h"

namespace terrace {

namespace {

constexpr int kIdleLooks = 3;

}  // namespace

bool IsNoRoom(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && IoFaultOf(status).error == 0;
}

RoomWait::~RoomWait() {
  if (is_lacking_) room_.EndLacking();
}

absl::StatusOr<bool> RoomWait::Decide() {
  if (Waits()) return false;
  return absl::ResourceExhaustedError(absl::StrCat(
      "what is in use at a time takes ", FormatBytes(room_.used_bytes()),
      ", and the budget is ", FormatBytes(room_.most_bytes()),
      patience_ == RoomPatience::kBeside
          ? "; what uses it may be waiting for this"
          : ""));
}

bool RoomWait::Waits() {
  switch (patience_) {
    case RoomPatience::kNone:
    case RoomPatience::kLoads:
      return false;
    case RoomPatience::kTurn:
      if (!std::exchange(is_lacking_, true)) room_.BeginLacking();
      // A thread that is between two operations at a look has the next one
      // soon.
      idle_looks_ = order_.IsAnyComputing() ? 0 : idle_looks_ + 1;
      return idle_looks_ < kIdleLooks;
    case RoomPatience::kBeside:
      return !IsAwaitedTooLong();
  }
  return false;
}

bool RoomWait::IsAwaitedTooLong() {
  // Operations that have pins may wait for the tensor that this fetch brings.
  const bool is_awaited =
      (beside_.is_awaited && beside_.is_awaited()) || !order_.IsAnyComputing();
  if (!is_awaited) {
    awaited_since_ = absl::InfiniteFuture();
    return false;
  }
  const absl::Time now = absl::Now();
  awaited_since_ = std::min(awaited_since_, now);
  return now - awaited_since_ >= beside_.patience;
}

}  // namespace terrace
