// What subcommands ask a host's daemon, and where they look for it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/cli/arguments.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"

namespace terrace::cli {

// Options alone, among them --daemon ADDRESS. InvalidArgument: anything else.
absl::StatusOr<Arguments> ParseDaemonArguments(
    const std::vector<std::string>& words,
    const std::vector<std::string>& flags,
    const std::vector<std::string>& valued = {});

// How the daemon is that --daemon names; without it one's own, and where there
// is none, the system's. Errors are AskStatus's. `question`: another one that
// is answered so.
absl::StatusOr<DaemonStatus> AskDaemonStatus(
    const Arguments& arguments, EnvelopeBody question = StatusRequest());

// A connection to that daemon. Errors are PacketSocket::Connect's.
absl::StatusOr<PacketSocket> ConnectToDaemon(const Arguments& arguments);

}  // namespace terrace::cli
