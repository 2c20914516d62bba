#include <cstdio>
#include <optional>

#include "base/status_macros.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/printable.h"
#include "daemon/cli/quota_table.h"
#include "daemon/config/daemon_config.h"
#include "daemon/config/path_check.h"
#include "daemon/config/user_names.h"

namespace terrace::cli {
namespace {

constexpr int kWidth = 100;

absl::StatusOr<DaemonConfig> ConfigOf(const std::string& file) {
  TERRACE_ASSIGN_OR_RETURN(DaemonConfig config, ReadDaemonConfig(file));
  TERRACE_RETURN_IF_ERROR(UidsOf(config).status());
  TERRACE_RETURN_IF_ERROR(GroupOf(config).status());
  TERRACE_RETURN_IF_ERROR(OperatorsOf(config).status());
  TERRACE_RETURN_IF_ERROR(CheckPaths(config));
  return config;
}

std::string TextOf(const MachineReport& report,
                   const std::optional<DaemonConfig>& config) {
  const std::string text = FormatReport(report, kWidth);
  return config.has_value() ? FormatQuotas(*config, kWidth) + "\n" + text
                            : text;
}

std::string JsonOf(const MachineReport& report,
                   const std::optional<DaemonConfig>& config) {
  const std::string json = ToJson(report);
  return config.has_value() ? WithQuotas(json, *config) : json;
}

}  // namespace

void PrintError(const std::string& subcommand, const std::string& message) {
  std::fprintf(stderr, "terrace %s: %s\n", subcommand.c_str(),
               Printable(message).c_str());
}

bool PrintText(const std::string& subcommand, const std::string& text) {
  const bool printed =
      std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!printed) PrintError(subcommand, "standard output cannot be written");
  return printed;
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
      ParseArguments(arguments, {"json"}, {"config"}, {"tier"});
  absl::StatusOr<std::vector<TierSpec>> tiers =
      parsed.ok() ? ParseTiers(parsed->lists["tier"]) : parsed.status();
  if (!tiers.ok()) {
    PrintError("doctor", std::string(tiers.status().message()));
    return kBadUsage;
  }
  std::optional<DaemonConfig> config;
  if (parsed->Has("config")) {
    absl::StatusOr<DaemonConfig> read = ConfigOf(parsed->options.at("config"));
    if (!read.ok()) {
      PrintError("doctor", std::string(read.status().message()));
      return kFailure;
    }
    const std::vector<TierSpec> owned = read->TierSpecs();
    tiers->insert(tiers->end(), owned.begin(), owned.end());
    config = *std::move(read);
  }
  const MachineReport report = ProbeMachine(parsed->words, *tiers);
  const std::string text =
      parsed->Has("json") ? JsonOf(report, config) : TextOf(report, config);
  const bool printed = PrintText("doctor", text);
  return printed && report.usable() ? kSuccess : kFailure;
}

}  // namespace terrace::cli
