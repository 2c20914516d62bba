// Whether one fetch that finds no room waits for it, or is told that there will
// be none: where nothing can leave because of what is in use.
//
//   RoomWait wait(room, beside);        // null: of an operation
//   wait.Look();
//   if (EvictOne()) return true;
//   return wait.Decide();               // false: it waits, and looks again
//
// An operation waits for what is held beside it, and for nothing else: what
// operations have pinned at a time ends with them. What comes beside operations
// waits for these, but not long where they wait for it. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/torch/hook/window/window_room.h"

namespace terrace {

// Of fetches that come beside operations.
struct BesideOptions {
  // Whether something waits for one of these; none: no.
  std::function<bool()> is_awaited;
  // How long they wait for room while that is so.
  absl::Duration patience = absl::Seconds(10);
};

class RoomWait {
 public:
  // Both must outlive it.
  RoomWait(const WindowRoom& room, const BesideOptions* beside)
      : room_(room), beside_(beside) {}

  // Before it is tried to let something leave.
  void Look() { turn_ = room_.turn(); }
  // Where nothing can. ResourceExhausted: what is in use at a time is too much.
  absl::StatusOr<bool> Decide();

 private:
  bool IsAwaitedTooLong();

  const WindowRoom& room_;
  const BesideOptions* const beside_;
  uint64_t turn_ = 0;
  absl::Time awaited_since_ = absl::InfiniteFuture();
};

}  // namespace terrace
