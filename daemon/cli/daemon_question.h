// What subcommands ask a host's daemon, and where they look for it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "daemon/cli/arguments.h"
#include "daemon/client/control_client.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"

namespace terrace::cli {

// Options, among them --daemon ADDRESS, and one word, if `word` names it.
// InvalidArgument: anything else.
absl::StatusOr<Arguments> ParseDaemonArguments(
    const std::vector<std::string>& words,
    const std::vector<std::string>& flags,
    const std::vector<std::string>& valued = {}, const char* word = nullptr);

// What an answer takes, where nothing is waited for.
inline constexpr absl::Duration kAnswerPatience = absl::Seconds(10);

// A connection to the daemon that --daemon names; without it to one's own, and
// where there is none, to the system's. Errors are PacketSocket::Connect's.
absl::StatusOr<PacketSocket> ConnectToDaemon(const Arguments& arguments);

// The one answer that the question has. Errors are AskFor's.
template <typename Answer>
absl::StatusOr<Answer> AskOne(PacketSocket& socket, EnvelopeBody question,
                              absl::Duration patience = kAnswerPatience) {
  return AskFor<Answer>(socket, std::move(question),
                        SystemClock().Now() + patience);
}

// The same over a connection of its own.
template <typename Answer>
absl::StatusOr<Answer> AskDaemon(const Arguments& arguments,
                                 EnvelopeBody question,
                                 absl::Duration patience = kAnswerPatience) {
  absl::StatusOr<PacketSocket> socket = ConnectToDaemon(arguments);
  if (!socket.ok()) return socket.status();
  return AskOne<Answer>(*socket, std::move(question), patience);
}

}  // namespace terrace::cli
