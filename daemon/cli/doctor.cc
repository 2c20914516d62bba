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

absl::StatusOr<std::vector<TierSpec>> ParseTiers(
    const std::vector<std::string>& texts) {
  std::vector<TierSpec> tiers;
  for (const std::string& text : texts) {
    const absl::StatusOr<TierSpec> tier = ParseTier(text);
    if (!tier.ok()) return tier.status();
    tiers.push_back(*tier);
  }
  return tiers;
}

int RunDoctor(const std::vector<std::string>& arguments) {
  absl::StatusOr<Arguments> parsed =
      ParseArguments(arguments, {"json"}, {}, {"tier"});
  const absl::StatusOr<std::vector<TierSpec>> tiers =
      parsed.ok() ? ParseTiers(parsed->lists["tier"]) : parsed.status();
  if (!tiers.ok()) {
    PrintError("doctor", std::string(tiers.status().message()));
    return kBadUsage;
  }
  const MachineReport report = ProbeMachine(parsed->words, *tiers);
  const std::string text =
      parsed->Has("json") ? ToJson(report) : FormatReport(report, kWidth);
  const bool printed =
      std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!printed) PrintError("doctor", "standard output cannot be written");
  return printed && report.usable() ? kSuccess : kFailure;
}

}  // namespace terrace::cli
