// A RoomWait decides whether a fetch waits for room or is told that there is
// none, where no tensor can leave because of those in use; and it waits.
//
//   RoomWait wait(room, order, RoomPatience::kTurn, beside);
//   if (EvictOne()) return true;
//   return wait.Await(until);           // true: the caller is to look again
//
// An operation that has pins waits for room only in its turn (room_turn.h), and
// only for as long as another operation computes: where all that hold pins
// wait, no room will come. A fetch beside operations waits for them, but not
// long where they wait for it. What ends a wait is news (room_news.h). One
// thread at a time uses a RoomWait.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "libtorch/hook/window/room_news.h"
#include "libtorch/hook/window/use_order.h"
#include "libtorch/hook/window/window_room.h"

namespace terrace {

// These options are for fetches that come beside operations.
struct BesideOptions {
  // Returns whether something waits for one of these fetches; where there is no
  // function, nothing does. Whatever begins to wait tells RoomNews of it.
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

  // Called where no tensor can leave. Returns true when the caller is to look
  // again, as something has changed since the call before returned; false when
  // nothing has until then; or ResourceExhausted when the tensors in use at a
  // time take too much.
  absl::StatusOr<bool> Await(absl::Time until);

 private:
  // Returns whether those that have the room may be waiting for this fetch.
  bool IsInVain() const;

  WindowRoom& room_;
  const UseOrder& order_;
  const RoomPatience patience_;
  const BesideOptions& beside_;
  std::optional<RoomNews::Listener> news_;  // from the first wait on
  absl::Time in_vain_since_ = absl::InfiniteFuture();
};

}  // namespace terrace
