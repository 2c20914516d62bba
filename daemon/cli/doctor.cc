#include <cstdio>

#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"

namespace terrace::cli {
namespace {

constexpr int kWidth = 100;

}  // namespace

void PrintError(const std::string& subcommand, const std::string& message) {
  std::fprintf(stderr, "terrace %s: %s\n", subcommand.c_str(), message.c_str());
}

int RunDoctor(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Arguments> parsed =
      ParseArguments(arguments, {"json"}, {});
  if (!parsed.ok()) {
    PrintError("doctor", std::string(parsed.status().message()));
    return kBadUsage;
  }
  const MachineReport report = ProbeMachine(parsed->words);
  const std::string text =
      parsed->Has("json") ? ToJson(report) : FormatReport(report, kWidth);
  const bool printed =
      std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!printed) PrintError("doctor", "standard output cannot be written");
  return printed && report.usable() ? kSuccess : kFailure;
}

}  // namespace terrace::cli
