// What a process asks a host's daemon over its socket.
//
// Functions are thread-safe; a connection belongs to one thread at a time.
#pragma once

#include <string>
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

// Sends the first request of a connection and waits for its answer; the
// deadline is SystemClock()'s. Errors: those of PacketSocket; the daemon's
// refusal, as it is; Internal: the answer to another request.
absl::StatusOr<Answered> AskOver(PacketSocket& socket, EnvelopeBody body,
                                 absl::Time deadline);

// How the daemon is that listens there; the deadline is SystemClock()'s.
// Errors: those of PacketSocket::Connect and Await; the daemon's refusal, as it
// is; Internal: an answer to something else.
absl::StatusOr<DaemonStatus> AskStatus(const std::string& path,
                                       absl::Time deadline);

}  // namespace terrace
