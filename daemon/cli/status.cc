#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "daemon/cli/arguments.h"
#include "daemon/cli/commands.h"
#include "daemon/cli/daemon_question.h"
#include "daemon/cli/table.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWidth = 100;

std::string TextOf(const DaemonStatus& status) {
  Table table;
  table.Add("daemon", absl::StrCat(status.phase, ", terraced ", status.version,
                                   ", pid ", status.pid));
  table.Add("mover",
            absl::StrCat("answered ", status.silent_for_ms, " ms ago"));
  for (const DaemonStatus::Loop& each : status.stopped) {
    table.Add("stopped",
              absl::StrCat(each.name, ", for ", each.silent_for_ms, " ms"));
  }
  for (const DaemonStatus::Tier& each : status.tiers) {
    table.Add("tier",
              absl::StrCat(each.name, ": ", FormatBytes(each.used_bytes),
                           " of ", FormatBytes(each.budget_bytes), " used"));
    table.Add("", each.fault);
  }
  for (const DaemonStatus::User& each : status.users) {
    table.Add("user",
              absl::StrCat("uid ", each.uid, ": ", each.connections, " of ",
                           each.connection_limit, " connections"));
  }
  for (const DaemonStatus::Job& each : status.jobs) {
    std::vector<std::string> tiers;
    for (const DaemonStatus::TierBytes& tier : each.tiers) {
      tiers.push_back(
          absl::StrCat(tier.name, ": ", FormatBytes(tier.used_bytes)));
    }
    table.Add("job",
              absl::StrCat(each.name.empty() ? "without a name" : each.name,
                           " of uid ", each.uid, ": ", each.processes,
                           each.processes == 1 ? " process, " : " processes, ",
                           absl::StrJoin(tiers, ", ")));
  }
  return table.Format(kWidth);
}

std::string JsonOf(const DaemonStatus& status) {
  Json tiers = Json::array();
  for (const DaemonStatus::Tier& each : status.tiers) {
    tiers.push_back(
        {{"name", each.name},
         {"budget_bytes", each.budget_bytes},
         {"used_bytes", each.used_bytes},
         {"fault", each.fault.empty() ? Json() : Json(each.fault)}});
  }
  Json users = Json::array();
  for (const DaemonStatus::User& each : status.users) {
    users.push_back({{"uid", each.uid},
                     {"connections", each.connections},
                     {"connection_limit", each.connection_limit}});
  }
  Json jobs = Json::array();
  for (const DaemonStatus::Job& each : status.jobs) {
    Json used = Json::object();
    for (const DaemonStatus::TierBytes& tier : each.tiers) {
      used[tier.name] = tier.used_bytes;
    }
    jobs.push_back({{"uid", each.uid},
                    {"name", each.name},
                    {"processes", each.processes},
                    {"used_bytes", std::move(used)}});
  }
  Json stopped = Json::array();
  for (const DaemonStatus::Loop& each : status.stopped) {
    stopped.push_back({{"loop", each.name},
                       {"process", each.process},
                       {"silent_for_ms", each.silent_for_ms}});
  }
  const Json json = {{"format", 1},
                     {"phase", status.phase},
                     {"version", status.version},
                     {"pid", status.pid},
                     {"silent_for_ms", status.silent_for_ms},
                     {"tiers", std::move(tiers)},
                     {"users", std::move(users)},
                     {"jobs", std::move(jobs)},
                     {"loops", status.loops},
                     {"stopped", std::move(stopped)}};
  // Names of files may be any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunStatus(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments =
      ParseDaemonArguments(words, {"json"});
  if (!arguments.ok()) {
    PrintError("status", std::string(arguments.status().message()));
    return kBadUsage;
  }
  const absl::StatusOr<DaemonStatus> status =
      AskDaemon<DaemonStatus>(*arguments, StatusRequest());
  if (!status.ok()) {
    PrintError("status", std::string(status.status().message()));
    return kFailure;
  }
  const std::string text =
      arguments->Has("json") ? JsonOf(*status) : TextOf(*status);
  return PrintText("status", text) ? kSuccess : kFailure;
}

}  // namespace terrace::cli
