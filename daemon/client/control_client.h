// What a process asks a host's daemon over its socket.
//
// Functions are thread-safe; a connection belongs to one thread at a time.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

// "unix:/run/terrace/control.sock", or the path alone. InvalidArgument: another
// kind of address, or a path that does not begin with /.
absl::StatusOr<std::string> SocketPathOf(absl::string_view address);

// What the daemon answered, and the descriptors beside it, if any are taken.
struct Answered {
  EnvelopeBody body;
  std::vector<OwnDescriptor> descriptors;
};

// Sends a request, while no other one is under way, and waits for its answer,
// of as many packets as it has; the deadline is SystemClock()'s. Errors: those
// of PacketSocket; the daemon's refusal, as it is; InvalidArgument: what is no
// message; Internal: the answer to another request.
absl::StatusOr<Answered> AskOver(PacketSocket& socket, EnvelopeBody body,
                                 absl::Time deadline);

// The same of a question that has one answer. Internal also: the daemon
// answered with something else.
template <typename Answer>
absl::StatusOr<Answer> AskFor(PacketSocket& socket, EnvelopeBody question,
                              absl::Time deadline) {
  absl::StatusOr<Answered> answered =
      AskOver(socket, std::move(question), deadline);
  if (!answered.ok()) return answered.status();
  if (auto* const answer = std::get_if<Answer>(&answered->body)) {
    return std::move(*answer);
  }
  return absl::InternalError("the daemon answered with something else");
}

}  // namespace terrace
