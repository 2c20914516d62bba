#include "daemon/cli/quota_table.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "daemon/cli/table.h"

namespace terrace::cli {
namespace {

using Json = nlohmann::ordered_json;

void AddCount(const std::optional<PlacedCount>& count, const char* noun,
              std::vector<std::string>* words) {
  if (!count.has_value()) return;
  words->push_back(
      absl::StrCat(count->count, " ", noun, count->count == 1 ? "" : "s"));
}

std::string QuotaText(const Quota& quota) {
  std::vector<std::string> words;
  for (const auto& [tier, bytes] : quota.tier_bytes) {
    words.push_back(absl::StrCat(FormatBytes(bytes.count), " of ", tier));
  }
  AddCount(quota.arenas, "arena", &words);
  AddCount(quota.connections, "connection", &words);
  AddCount(quota.requests, "request", &words);
  words.push_back(absl::StrCat("weight ", quota.weight_count()));
  return Join(words, ", ");
}

Json CountAsJson(const std::optional<PlacedCount>& count) {
  return count.has_value() ? Json(count->count) : Json();
}

Json QuotaAsJson(const Quota& quota) {
  Json tiers = Json::object();
  for (const auto& [tier, bytes] : quota.tier_bytes) tiers[tier] = bytes.count;
  return {{"tier_bytes", tiers},
          {"arenas", CountAsJson(quota.arenas)},
          {"connections", CountAsJson(quota.connections)},
          {"requests", CountAsJson(quota.requests)},
          {"weight", quota.weight_count()}};
}

}  // namespace

std::string FormatQuotas(const DaemonConfig& config, int width) {
  Table table;
  for (const DaemonConfig::Tier& each : config.tiers) {
    table.AddWhole("owns", TierText(each.spec));
  }
  table.Add("each user", QuotaText(config.each_user));
  table.Add("  job", QuotaText(config.each_job));
  for (const auto& [name, user] : config.users) {
    table.Add(name, QuotaText(config.OfUser(name)));
    table.Add("  job", QuotaText(config.OfJob(name, "")));
    for (const auto& [job, quota] : user.jobs) {
      table.Add(absl::StrCat("  job ", job),
                QuotaText(config.OfJob(name, job)));
    }
  }
  return table.Format(width);
}

std::string WithQuotas(const std::string& json, const DaemonConfig& config) {
  Json tiers = Json::array();
  for (const DaemonConfig::Tier& each : config.tiers) {
    tiers.push_back(TierText(each.spec));
  }
  Json users = Json::object();
  for (const auto& [name, user] : config.users) {
    Json jobs = Json::object();
    for (const auto& [job, quota] : user.jobs) {
      jobs[job] = QuotaAsJson(config.OfJob(name, job));
    }
    users[name] = {{"user", QuotaAsJson(config.OfUser(name))},
                   {"job", QuotaAsJson(config.OfJob(name, ""))},
                   {"jobs", std::move(jobs)}};
  }
  Json whole = Json::parse(json);
  whole["daemon"] = {{"file", config.file},
                     {"tiers", std::move(tiers)},
                     {"user", QuotaAsJson(config.each_user)},
                     {"job", QuotaAsJson(config.each_job)},
                     {"users", std::move(users)}};
  // Names of files may be any bytes.
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace terrace::cli
