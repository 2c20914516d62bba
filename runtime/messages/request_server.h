// Who hears and serves what a thread of this process posts, on that thread:
// where it would only wait for the answer, two wake-ups are spared.
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/messages/intake.h"

namespace terrace {

// Thread-safe.
class RequestServer {
 public:
  virtual ~RequestServer() = default;
  // What `post` posts is heard and served on this thread before it returns,
  // where the mover sleeps and nothing that has arrived is the mover's own;
  // else by the mover, soon. `post` waits for nothing of the runtime. A turn
  // that an exception ends cannot be gone on from.
  virtual void PostAndServe(absl::FunctionRef<void()> post) noexcept = 0;
};

// As the intake's Post, and served so. Null: nobody does.
template <typename Body>
absl::Status PostAndServe(RequestServer* server, Intake& intake, Body request) {
  if (server == nullptr) return intake.Post(std::move(request));
  absl::Status posted;
  server->PostAndServe([&] { posted = intake.Post(std::move(request)); });
  return posted;
}

}  // namespace terrace
