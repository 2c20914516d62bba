#include "daemon/cli/daemon_question.h"

#include <cstdlib>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/client/control_client.h"
#include "daemon/wire/default_socket.h"

namespace terrace::cli {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

absl::StatusOr<Arguments> ParseDaemonArguments(
    const std::vector<std::string>& words,
    const std::vector<std::string>& flags,
    const std::vector<std::string>& valued) {
  std::vector<std::string> all = valued;
  all.emplace_back("daemon");
  TERRACE_ASSIGN_OR_RETURN(Arguments arguments,
                           ParseArguments(words, flags, all));
  if (!arguments.words.empty()) {
    return absl::InvalidArgumentError("it takes options alone");
  }
  if (arguments.Has("daemon")) {
    TERRACE_ASSIGN_OR_RETURN(arguments.options["daemon"],
                             SocketPathOf(arguments.options["daemon"]));
  }
  return arguments;
}

absl::StatusOr<PacketSocket> ConnectToDaemon(const Arguments& arguments) {
  const absl::Time deadline = SystemClock().Now() + kPatience;
  if (arguments.Has("daemon")) {
    return PacketSocket::Connect(arguments.options.at("daemon"), deadline);
  }
  const std::string own = DefaultSocket(std::getenv("XDG_RUNTIME_DIR"));
  if (!own.empty() && own != kSystemSocket) {
    absl::StatusOr<PacketSocket> socket = PacketSocket::Connect(own, deadline);
    if (!absl::IsNotFound(socket.status())) return socket;
  }
  return PacketSocket::Connect(kSystemSocket, deadline);
}

absl::StatusOr<DaemonStatus> AskDaemonStatus(const Arguments& arguments,
                                             EnvelopeBody question) {
  TERRACE_ASSIGN_OR_RETURN(PacketSocket socket, ConnectToDaemon(arguments));
  TERRACE_ASSIGN_OR_RETURN(
      Answered answered,
      AskOver(socket, std::move(question), SystemClock().Now() + kPatience));
  if (auto* const status = std::get_if<DaemonStatus>(&answered.body)) {
    return std::move(*status);
  }
  return absl::InternalError("the daemon answered with something else");
}

}  // namespace terrace::cli
