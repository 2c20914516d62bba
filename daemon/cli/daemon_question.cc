#include "daemon/cli/daemon_question.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/wire/default_socket.h"

namespace terrace::cli {

absl::StatusOr<Arguments> ParseDaemonArguments(
    const std::vector<std::string>& words,
    const std::vector<std::string>& flags,
    const std::vector<std::string>& valued, const char* word) {
  std::vector<std::string> all = valued;
  all.emplace_back("daemon");
  TERRACE_ASSIGN_OR_RETURN(Arguments arguments,
                           ParseArguments(words, flags, all));
  if (word == nullptr && !arguments.words.empty()) {
    return absl::InvalidArgumentError("it takes options alone");
  }
  if (word != nullptr && arguments.words.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("it takes one ", word, ", and options"));
  }
  if (arguments.Has("daemon")) {
    TERRACE_ASSIGN_OR_RETURN(arguments.options["daemon"],
                             SocketPathOf(arguments.options["daemon"]));
  }
  return arguments;
}

absl::StatusOr<PacketSocket> ConnectToDaemon(const Arguments& arguments) {
  const absl::Time deadline = SystemClock().Now() + kAnswerPatience;
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

}  // namespace terrace::cli
