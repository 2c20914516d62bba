// Whose turn it is to turn a mover: its own thread's, or one's that has posted
// requests and would only wait for their answers. That one serves them itself
// while the mover's thread sleeps, and is spared two wake-ups.
//
// Thread-safe. Shared by the runtime and all who post there, and may outlive
// it: then posting is all that is left.
#pragma once

#include <atomic>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "runtime/messages/request_server.h"
#include "runtime/mover/mover.h"

namespace terrace {

class Crank final : public RequestServer {
 public:
  // Which outlives it until Leave.
  explicit Crank(Mover& mover) : mover_(&mover) {}

  // The mover's thread: a whole turn, and when the next one is due.
  absl::Time Turn();
  void PostAndServe(absl::FunctionRef<void()> post) noexcept override;
  // The mover goes.
  void Leave();

 private:
  // No leaf: all that a mover takes comes under it. Nobody waits for it but the
  // mover's thread, and who ends the runtime.
  std::mutex mutex_;
  // The mover's thread waits for it: many who post would else hold it up.
  std::atomic<bool> is_wanted_ = false;
  Mover* mover_;
  absl::Time sleeps_until_;  // of its thread, by its last turn
};

}  // namespace terrace
