// Whether a fetch that finds no room waits for it, or is told that there is
// none: where nothing can leave because of what is in use.
//
//   RoomWait wait(room, order, RoomPatience::kTurn, beside);
//   if (EvictOne()) return true;
//   return wait.Decide();               // false: it waits, and looks again
//
// An operation does not wait with what it has pinned but in its turn
// (room_turn.h), and then for as long as another one computes: where all that
// hold pins wait, there will be none. What comes beside operations waits for
// these, but not long where they wait for it. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/use_order.h"
#include "libtorch/hook/window/window_room.h"

namespace terrace {

// Of fetches that come beside operations.
struct BesideOptions {
  // Whether something waits for one of these; none: no.
  std::function<bool()> is_awaited;
  // How long they wait for room while that is so.
  absl::Duration patience = absl::Seconds(10);
};

// Of one that has or wants pins.
enum class RoomPatience : uint8_t {
  kNone,    // neither for room nor for what another thread brings
  kLoads,   // for that alone
  kTurn,    // for room too, while another computes
  kBeside,  // it comes beside operations
};

// Of a fetch: what is in use left no room, and nothing has failed.
bool IsNoRoom(const absl::Status& status);

class RoomWait {
 public:
  // All must outlive it.
  RoomWait(WindowRoom& room, const UseOrder& order, RoomPatience patience,
           const BesideOptions& beside)
      : room_(room), order_(order), patience_(patience), beside_(beside) {}
  ~RoomWait();
  RoomWait(const RoomWait&) = delete;
  RoomWait& operator=(const RoomWait&) = delete;

  // Where nothing can leave. ResourceExhausted: what is in use at a time is too
  // much.
  absl::StatusOr<bool> Decide();

 private:
  bool Waits();
  bool IsAwaitedTooLong();

  WindowRoom& room_;
  const UseOrder& order_;
  const RoomPatience patience_;
  const BesideOptions& beside_;
  bool is_lacking_ = false;
  int idle_looks_ = 0;  // at which nothing computed, one after another
  absl::Time awaited_since_ = absl::InfiniteFuture();
};

}  // namespace terrace
