#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/table.h"

namespace terrace::cli {
namespace {

constexpr int kWidth = 100;

std::string Speed(double bytes_per_second) {
  return FormatBytes(static_cast<int64_t>(bytes_per_second)) + "/s";
}

// $XDG_CONFIG_HOME/terrace/machine.json, else below ~/.config; empty: the
// environment names neither.
std::string DefaultFile() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && config[0] == '/') {
    return std::string(config) + "/terrace/machine.json";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] == '\0') return "";
  return std::string(home) + "/.config/terrace/machine.json";
}

std::string FormatProfile(const MachineProfile& profile) {
  Table table;
  table.Add("copy", absl::StrFormat("%s on %d threads",
                                    Speed(profile.copy_bytes_per_second),
                                    profile.threads));
  table.Add("adam", absl::StrFormat("%.3g elements/s, %s",
                                    profile.adam_elements_per_second,
                                    profile.instruction_set));
  for (const PathProfile& path : profile.paths) {
    table.AddWhole("path", path.path);
    table.Add("  through",
              Join({path.engine, path.direct_io ? "direct I/O" : "page cache",
                    Join(path.drives, ", ")},
                   ", "));
    for (const RateProfile& rate : path.rates) {
      table.AddWhole(
          "  " + rate.direction,
          absl::StrFormat(
              "%8s in %2d: %12s, %7.2f ms, p99 %7.2f ms",
              FormatBytes(rate.piece_bytes),
              rate.piece_bytes > 0 ? rate.window_bytes / rate.piece_bytes : 0,
              Speed(rate.bytes_per_second), rate.latency_p50_us / 1000,
              rate.latency_p99_us / 1000));
    }
  }
  for (const TierProfile& tier : profile.tiers) {
    table.AddWhole("tier", tier.tier);
    table.Add("  edges",
              absl::StrCat(Speed(tier.read_bytes_per_second), " to memory, ",
                           Speed(tier.write_bytes_per_second), " from memory"));
  }
  return table.Format(kWidth);
}

// Tells what of a profile still holds.
int CheckProfile(const Arguments& arguments, const std::vector<TierSpec>& tiers,
                 const std::string& file) {
  const absl::StatusOr<MachineProfile> profile = ReadProfile(file);
  if (!profile.ok()) {
    PrintError("tune", std::string(profile.status().message()));
    return kFailure;
  }
  std::vector<std::string> paths = arguments.words;
  if (paths.empty()) {
    for (const PathProfile& path : profile->paths) paths.push_back(path.path);
  }
  const std::vector<std::string> stale =
      FindStale(*profile, ProbeMachine(paths, tiers));
  std::string text = stale.empty() ? absl::StrCat(file, " holds\n") : "";
  for (const std::string& reason : stale) {
    absl::StrAppend(&text, "stale: ", reason, "\n");
  }
  return PrintText("tune", text) && stale.empty() ? kSuccess : kFailure;
}

}  // namespace

int RunTune(const std::vector<std::string>& arguments) {
  absl::StatusOr<Arguments> parsed =
      ParseArguments(arguments, {"json", "check"}, {"out"}, {"tier"});
  const absl::StatusOr<std::vector<TierSpec>> tiers =
      parsed.ok() ? ParseTiers(parsed->lists["tier"]) : parsed.status();
  if (!tiers.ok()) {
    PrintError("tune", std::string(tiers.status().message()));
    return kBadUsage;
  }
  if (parsed->Has("check") && parsed->Has("json")) {
    PrintError("tune", "--check has no JSON: give --check or --json");
    return kBadUsage;
  }
  const std::string file =
      parsed->Has("out") ? parsed->options.at("out") : DefaultFile();
  if (file.empty()) {
    PrintError("tune", "HOME is not set: name a file with --out");
    return kBadUsage;
  }
  if (parsed->Has("check")) return CheckProfile(*parsed, *tiers, file);
  const absl::StatusOr<MachineProfile> profile =
      MeasureMachine({.paths = parsed->words, .tiers = *tiers});
  if (!profile.ok()) {
    PrintError("tune", std::string(profile.status().message()));
    return kFailure;
  }
  const absl::Status written = WriteProfile(*profile, file);
  if (!written.ok()) {
    PrintError("tune", std::string(written.message()));
    return kFailure;
  }
  const std::string text =
      parsed->Has("json")
          ? ToJson(*profile)
          : absl::StrCat(FormatProfile(*profile), "\nwritten to ", file, "\n");
  return PrintText("tune", text) ? kSuccess : kFailure;
}

}  // namespace terrace::cli
