#include "daemon/cli/daemon_question.h"

#include <cstdlib>

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

absl::StatusOr<DaemonStatus> AskDaemonStatus(const Arguments& arguments) {
  const absl::Time deadline = SystemClock().Now() + kPatience;
  if (arguments.Has("daemon")) {
    return AskStatus(arguments.options.at("daemon"), deadline);
  }
  const std::string own = DefaultSocket(std::getenv("XDG_RUNTIME_DIR"));
  if (!own.empty() && own != kSystemSocket) {
    absl::StatusOr<DaemonStatus> status = AskStatus(own, deadline);
    if (!absl::IsNotFound(status.status())) return status;
  }
  return AskStatus(kSystemSocket, deadline);
}

}  // namespace terrace::cli
