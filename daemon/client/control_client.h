// What a process asks a host's daemon over its socket.
//
// Functions are thread-safe; each connects for itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/wire/envelope.h"

namespace terrace {

// "unix:/run/terrace/control.sock", or the path alone. InvalidArgument: another
// kind of address, or a path that does not begin with /.
absl::StatusOr<std::string> SocketPathOf(absl::string_view address);

// How the daemon is that listens there; the deadline is SystemClock()'s.
// Errors: those of PacketSocket::Connect and Await; the daemon's refusal, as it
// is; Internal: an answer to something else.
absl::StatusOr<DaemonStatus> AskStatus(const std::string& path,
                                       absl::Time deadline);

}  // namespace terrace
