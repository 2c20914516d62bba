// terraced: owns a host's memory and drives for the jobs on it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "daemon/cli/arguments.h"
#include "daemon/log/log.h"
#include "daemon/server/daemon.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/signals.h"
#include "daemon/watch/loop_table.h"
#include "daemon/wire/default_socket.h"
#include "terrace/version.h"

namespace terrace {
namespace {

constexpr char kUsage[] =
    "usage: terraced [--config FILE] [--socket PATH]\n"
    "       terraced --version | --help\n"
    "Owns the tiers that FILE names (/etc/terrace/terraced.toml), in the\n"
    "foreground, until SIGTERM or SIGINT; SIGHUP has it read quotas and the\n"
    "log's level again. `terrace doctor --config FILE` checks FILE.\n";
constexpr int kBadUsage = 2;

absl::StatusOr<std::unique_ptr<Daemon>> Start(
    const DaemonOptions& options, Log* log, std::shared_ptr<LoopTable> loops) {
  TERRACE_ASSIGN_OR_RETURN(ServiceManager manager,
                           ServiceManager::OfEnvironment());
  return Daemon::Start(options, std::move(manager), log, std::move(loops));
}

int Serve(const DaemonOptions& options) {
  Signals::IgnoreAtFirst();
  const auto loops = std::make_shared<LoopTable>();
  const absl::StatusOr<std::unique_ptr<Log>> log =
      Log::Create(std::getenv("JOURNAL_STREAM"), *loops);
  if (!log.ok()) {
    std::fprintf(stderr, "terraced: %s\n", log.status().ToString().c_str());
    return EXIT_FAILURE;
  }
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon =
      Start(options, log->get(), loops);
  if (!daemon.ok()) {
    (*log)->Error(std::string(daemon.status().message()));
    return EXIT_FAILURE;
  }
  Signals signals;
  const absl::Status ended = (*daemon)->Run(&signals);
  if (ended.ok()) {
    (*log)->Info("has ended");
    return EXIT_SUCCESS;
  }
  (*log)->Error("has not ended as it should: " + std::string(ended.message()));
  (*log)->Flush();
  // A thread that never ends is not waited for.
  std::_Exit(EXIT_FAILURE);
}

int Main(const std::vector<std::string>& words) {
  absl::StatusOr<cli::Arguments> arguments =
      cli::ParseArguments(words, {"version", "help"}, {"config", "socket"});
  if (arguments.ok() && !arguments->words.empty()) {
    arguments = absl::InvalidArgumentError("no argument without an option: '" +
                                           arguments->words[0] + "'");
  }
  if (!arguments.ok()) {
    std::fprintf(stderr, "terraced: %s\n%s",
                 std::string(arguments.status().message()).c_str(), kUsage);
    return kBadUsage;
  }
  if (arguments->Has("help")) return std::fputs(kUsage, stdout) < 0;
  if (arguments->Has("version")) {
    return std::printf("terraced %s\n", kVersion) < 0;
  }
  DaemonOptions options;
  options.config_file = "/etc/terrace/terraced.toml";
  if (arguments->Has("config")) {
    options.config_file = arguments->options["config"];
  }
  options.default_socket = DefaultSocket(std::getenv("XDG_RUNTIME_DIR"));
  if (arguments->Has("socket")) options.socket = arguments->options["socket"];
  return Serve(options);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::Main({argv + 1, argv + argc});
}
