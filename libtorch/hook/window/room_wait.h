// A RoomWait decides whether a fetch waits for room or is told that there is
// none, where no tensor can leave because of those in use.
//
//   RoomWait wait(room, order, RoomPatience::kTurn, beside);
//   if (EvictOne()) return true;
//   return wait.Decide();               // false: it waits, and looks again
//
// An operation that has pins waits for room only in its turn (room_turn.h), and
// only for as long as another operation computes: where all that hold pins
// wait, no room will come. A fetch beside operations waits for them, but not
// long where they wait for it. One thread at a time uses a RoomWait.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/use_order.h"
#include "libtorch/hook/window/window_room.h"

namespace terrace {

// These options are for fetches that come beside operations.
struct BesideOptions {
  // Returns whether something waits for one of these fetches; where there is no
  // function, nothing does.
  std::function<bool()> is_awaited;
  // These fetches wait for room this long while something waits for them.
  absl::Duration patience = absl::Seconds(10);
};

// RoomPatience says what a thread that has or wants pins waits for.
enum class RoomPatience : uint8_t {
  kNone,    // neither for room nor for what another thread brings
  kLoads,   // for what another thread brings alone
  kTurn,    // for room too, while another operation computes
  kBeside,  // for room that operations have (BesideOptions)
};

// Whether a fetch's error says that tensors in use left no room, and that
// nothing has failed.
bool IsNoRoom(const absl::Status& status);

class RoomWait {
 public:
  // What the references refer to must outlive the RoomWait.
  RoomWait(WindowRoom& room, const UseOrder& order, RoomPatience patience,
           const BesideOptions& beside)
      : room_(room), order_(order), patience_(patience), beside_(beside) {}
  ~RoomWait();
  RoomWait(const RoomWait&) = delete;
  RoomWait& operator=(const RoomWait&) = delete;

  // Called where no tensor can leave. Returns false when the caller is to look
  // again, or ResourceExhausted when the tensors in use at a time take too
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
  int idle_looks_ = 0;  // in a row, at which nothing computed
  absl::Time awaited_since_ = absl::InfiniteFuture();
};

}  // namespace terrace
