#include "daemon/config/daemon_config.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/config/quota_check.h"
#include "daemon/config/table_reader.h"

namespace terrace {
namespace {

// A job's ring has so many descriptors at most that are not answered.
constexpr int64_t kMostCount = 1 << 20;
constexpr int64_t kMostWeight = 1000;  // as of IoWeights
constexpr int64_t kMostDrainSeconds = 3600;
constexpr int64_t kLeastPace = 1'000'000;  // a piece takes a quarter second
constexpr int64_t kMostFileBytes = int64_t{1} << 20;

absl::StatusOr<TierSpec> ReadTier(const TableReader& reader,
                                  const TomlValue& text) {
  const absl::StatusOr<TierSpec> tier = ParseTier(text.text);
  if (!tier.ok()) {
    return reader.ErrorAt(text.position, tier.status().message());
  }
  if (tier->kind == TierKind::kHbm) {
    return reader.ErrorAt(
        text.position,
        absl::StrCat(text.text,
                     ": a GPU's memory is its job's, not a daemon's"));
  }
  if (tier->budget_bytes == 0) {
    return reader.ErrorAt(
        text.position,
        absl::StrCat(text.text, ": it has no budget; write ", TierName(*tier),
                     "=100GiB, or as much as it is to be"));
  }
  return tier;
}

absl::StatusOr<std::vector<DaemonConfig::Tier>> ReadTiers(TableReader& reader) {
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const texts, reader.Texts("tiers"));
  std::vector<DaemonConfig::Tier> tiers;
  std::string memory;  // "": there is none yet
  if (texts != nullptr) {
    for (const TomlValue& text : texts->items) {
      TERRACE_ASSIGN_OR_RETURN(TierSpec tier, ReadTier(reader, text));
      const std::string name = TierName(tier);
      if (FindTier(tiers, name) != nullptr) {
        return reader.ErrorAt(text.position,
                              absl::StrCat(name, " is named twice"));
      }
      if (tier.kind == TierKind::kDram && !memory.empty()) {
        return reader.ErrorAt(
            text.position,
            absl::StrCat(name, ": jobs have one memory, which is ", memory));
      }
      if (tier.kind == TierKind::kDram) memory = name;
      tiers.push_back({std::move(tier), text.position});
    }
  }
  if (!memory.empty()) return tiers;
  return reader.ErrorAt(texts == nullptr ? TextPosition{} : texts->position,
                        "tiers has no memory, such as \"dram=64GiB\"");
}

absl::StatusOr<Quota> ReadQuota(TableReader& reader) {
  Quota quota;
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const texts, reader.Texts("tiers"));
  for (size_t i = 0; texts != nullptr && i < texts->items.size(); ++i) {
    const TomlValue& text = texts->items[i];
    TERRACE_ASSIGN_OR_RETURN(const TierSpec tier, ReadTier(reader, text));
    const bool is_new =
        quota.tier_bytes
            .try_emplace(TierName(tier),
                         PlacedCount{tier.budget_bytes, text.position})
            .second;
    if (is_new) continue;
    return reader.ErrorAt(text.position,
                          absl::StrCat(TierName(tier), " is named twice"));
  }
  TERRACE_ASSIGN_OR_RETURN(quota.arenas, reader.Count("arenas", 1, kMostCount));
  TERRACE_ASSIGN_OR_RETURN(quota.connections,
                           reader.Count("connections", 1, kMostCount));
  TERRACE_ASSIGN_OR_RETURN(quota.requests,
                           reader.Count("requests", 1, kMostCount));
  TERRACE_ASSIGN_OR_RETURN(quota.weight,
                           reader.Count("weight", 1, kMostWeight));
  return quota;
}

absl::StatusOr<std::optional<MetricsAddress>> ReadMetrics(TableReader& reader) {
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const text, reader.Text("metrics"));
  if (text == nullptr) return std::nullopt;
  absl::StatusOr<MetricsAddress> address = ParseMetricsAddress(text->text);
  if (address.ok()) return *std::move(address);
  return reader.ErrorAt(text->position, address.status().message());
}

// 0: it is not said.
absl::StatusOr<int64_t> ReadPace(TableReader& reader) {
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const pace, reader.Text("pace"));
  if (pace == nullptr) return 0;
  absl::string_view bytes = pace->text;
  if (absl::ConsumeSuffix(&bytes, "/s")) {
    const absl::StatusOr<int64_t> count = ParseBytes(bytes);
    if (count.ok() && *count >= kLeastPace) return *count;
  }
  return reader.ErrorAt(
      pace->position,
      absl::StrCat("pace is bytes per second, such as \"400MB/s\", and at "
                   "least \"1MB/s\"; not ",
                   pace->text));
}

absl::StatusOr<DaemonConfig::Service> ReadService(TableReader& reader) {
  static constexpr absl::string_view kLevels[] = {"debug", "info", "warning",
                                                  "error"};
  DaemonConfig::Service service;
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const socket,
                           reader.Text("socket"));
  if (socket != nullptr) {
    service.socket = socket->text;
    if (service.socket.empty() || service.socket[0] != '/') {
      return reader.ErrorAt(socket->position, "socket is a path from / on");
    }
  }
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const group, reader.Text("group"));
  if (group != nullptr) {
    service.group = group->text;
    service.group_position = group->position;
  }
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const operators,
                           reader.Text("operators"));
  if (operators != nullptr) {
    service.operators = operators->text;
    service.operators_position = operators->position;
  }
  TERRACE_ASSIGN_OR_RETURN(const std::optional<PlacedCount> drain,
                           reader.Count("drain_seconds", 1, kMostDrainSeconds));
  if (drain.has_value()) service.drain_seconds = drain->count;
  TERRACE_ASSIGN_OR_RETURN(service.metrics, ReadMetrics(reader));
  TERRACE_ASSIGN_OR_RETURN(service.pace_bytes_per_second, ReadPace(reader));
  TERRACE_ASSIGN_OR_RETURN(const TomlValue* const log, reader.Text("log"));
  if (log == nullptr) return service;
  service.log = log->text;
  if (absl::c_linear_search(kLevels, service.log)) return service;
  return reader.ErrorAt(log->position,
                        absl::StrCat("log is ", absl::StrJoin(kLevels, ", "),
                                     "; not ", service.log));
}

// A table of nothing but a quota.
absl::StatusOr<Quota> ReadWholeQuota(TableReader reader) {
  TERRACE_ASSIGN_OR_RETURN(Quota quota, ReadQuota(reader));
  TERRACE_RETURN_IF_ERROR(reader.CheckAllTaken());
  return quota;
}

absl::StatusOr<Quota> ReadQuotaIn(TableReader& reader, absl::string_view key) {
  TERRACE_ASSIGN_OR_RETURN(const std::optional<TableReader> table,
                           reader.Table(key));
  if (!table.has_value()) return Quota();
  return ReadWholeQuota(*table);
}

absl::StatusOr<DaemonConfig::User> ReadUser(TableReader reader) {
  DaemonConfig::User user;
  TERRACE_ASSIGN_OR_RETURN(user.all, ReadQuota(reader));
  TERRACE_ASSIGN_OR_RETURN(user.each_job, ReadQuotaIn(reader, "job"));
  TERRACE_ASSIGN_OR_RETURN(std::optional<TableReader> jobs,
                           reader.Table("jobs"));
  TERRACE_RETURN_IF_ERROR(reader.CheckAllTaken());
  if (!jobs.has_value()) return user;
  TERRACE_ASSIGN_OR_RETURN(const auto tables, jobs->OtherTables());
  for (const TableReader::NamedTable& each : tables) {
    TERRACE_ASSIGN_OR_RETURN(user.jobs[each.name], ReadWholeQuota(each.reader));
  }
  return user;
}

}  // namespace

const DaemonConfig::Tier* FindTier(const std::vector<DaemonConfig::Tier>& tiers,
                                   absl::string_view name) {
  for (const DaemonConfig::Tier& each : tiers) {
    if (TierName(each.spec) == name) return &each;
  }
  return nullptr;
}

std::vector<TierSpec> DaemonConfig::TierSpecs() const {
  std::vector<TierSpec> specs;
  for (const Tier& each : tiers) specs.push_back(each.spec);
  return specs;
}

const TierSpec& DaemonConfig::Memory() const {
  const auto found = absl::c_find_if(tiers, [](const Tier& each) {
    return each.spec.kind == TierKind::kDram;
  });
  TERRACE_CHECK(found != tiers.end());
  return found->spec;
}

Quota DaemonConfig::OfUser(const std::string& user) const {
  const auto found = users.find(user);
  Quota quota = found == users.end() ? Quota() : found->second.all;
  quota.FillFrom(each_user);
  return quota;
}

Quota DaemonConfig::OfJob(const std::string& user,
                          const std::string& job) const {
  Quota quota;
  if (const auto found = users.find(user); found != users.end()) {
    const auto named = found->second.jobs.find(job);
    if (named != found->second.jobs.end()) quota = named->second;
    quota.FillFrom(found->second.each_job);
  }
  quota.FillFrom(each_job);
  return quota;
}

absl::StatusOr<DaemonConfig> ParseDaemonConfig(absl::string_view text,
                                               absl::string_view file) {
  TERRACE_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  TableReader reader(std::string(file), "", root);
  DaemonConfig config;
  config.file = std::string(file);
  TERRACE_ASSIGN_OR_RETURN(config.tiers, ReadTiers(reader));
  TERRACE_ASSIGN_OR_RETURN(config.service, ReadService(reader));
  TERRACE_ASSIGN_OR_RETURN(std::optional<TableReader> quota,
                           reader.Table("quota"));
  if (quota.has_value()) {
    TERRACE_ASSIGN_OR_RETURN(config.each_user, ReadQuotaIn(*quota, "user"));
    TERRACE_ASSIGN_OR_RETURN(config.each_job, ReadQuotaIn(*quota, "job"));
    TERRACE_RETURN_IF_ERROR(quota->CheckAllTaken());
  }
  TERRACE_ASSIGN_OR_RETURN(std::optional<TableReader> users,
                           reader.Table("users"));
  TERRACE_RETURN_IF_ERROR(reader.CheckAllTaken());
  if (users.has_value()) {
    TERRACE_ASSIGN_OR_RETURN(const auto tables, users->OtherTables());
    for (const TableReader::NamedTable& each : tables) {
      DaemonConfig::User& user = config.users[each.name];
      TERRACE_ASSIGN_OR_RETURN(user, ReadUser(each.reader));
      user.position = each.position;
    }
  }
  TERRACE_RETURN_IF_ERROR(CheckQuotas(config));
  return config;
}

absl::StatusOr<DaemonConfig> ReadDaemonConfig(const std::string& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostFileBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (errno != 0 && (!in.is_open() || in.bad())) {
    const std::string why = absl::StrCat(file, ": ", std::strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(why);
    if (errno == EACCES) return absl::PermissionDeniedError(why);
    return absl::UnavailableError(why);
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.gcount() > kMostFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": more than ", kMostFileBytes, " bytes"));
  }
  return ParseDaemonConfig(text, file);
}

}  // namespace terrace
