#include "daemon/config/quota_check.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "daemon/config/table_reader.h"

namespace terrace {
namespace {

// Every limit of a quota by one kind of name, so that two compare in one loop.
std::map<std::string, PlacedCount> LimitsOf(const Quota& quota) {
  std::map<std::string, PlacedCount> limits;
  for (const auto& [tier, bytes] : quota.tier_bytes) {
    limits[absl::StrCat("bytes of ", tier)] = bytes;
  }
  if (quota.arenas.has_value()) limits["arenas"] = *quota.arenas;
  if (quota.connections.has_value()) limits["connections"] = *quota.connections;
  if (quota.requests.has_value()) limits["requests"] = *quota.requests;
  return limits;
}

class QuotaCheck {
 public:
  explicit QuotaCheck(const DaemonConfig& config) : config_(config) {}

  // A quota of tiers that there are, within their budgets.
  absl::Status CheckTiers(const Quota& quota) const {
    for (const auto& [name, bytes] : quota.tier_bytes) {
      const DaemonConfig::Tier* const tier = FindTier(config_.tiers, name);
      if (tier == nullptr) {
        return ErrorAt(config_.file, bytes.position,
                       absl::StrCat(name,
                                    " is no tier of this daemon; these "
                                    "are: ",
                                    Names()));
      }
      if (bytes.count > tier->spec.budget_bytes) {
        return ErrorAt(
            config_.file, bytes.position,
            absl::StrCat("a quota of ", bytes.count, " bytes of ", name,
                         ", which has ", tier->spec.budget_bytes, " (line ",
                         tier->position.line, ")"));
      }
    }
    return absl::OkStatus();
  }

  // What a job may have of what its user may have.
  absl::Status CheckWithin(const Quota& job, const std::string& whose,
                           const Quota& user) const {
    const std::map<std::string, PlacedCount> most = LimitsOf(user);
    for (const auto& [what, limit] : LimitsOf(job)) {
      const auto found = most.find(what);
      if (found == most.end() || limit.count <= found->second.count) continue;
      return ErrorAt(config_.file, limit.position,
                     absl::StrCat(whose, " may have ", limit.count, " ", what,
                                  ", and all jobs of its user together ",
                                  found->second.count, " (line ",
                                  found->second.position.line, ")"));
    }
    return absl::OkStatus();
  }

 private:
  std::string Names() const {
    return absl::StrJoin(config_.tiers, ", ",
                         [](std::string* out, const DaemonConfig::Tier& each) {
                           absl::StrAppend(out, TierName(each.spec));
                         });
  }

  const DaemonConfig& config_;
};

}  // namespace

absl::Status CheckQuotas(const DaemonConfig& config) {
  const QuotaCheck check(config);
  TERRACE_RETURN_IF_ERROR(check.CheckTiers(config.each_user));
  TERRACE_RETURN_IF_ERROR(check.CheckTiers(config.each_job));
  TERRACE_RETURN_IF_ERROR(
      check.CheckWithin(config.each_job, "each job", config.each_user));
  for (const auto& [name, user] : config.users) {
    TERRACE_RETURN_IF_ERROR(check.CheckTiers(user.all));
    TERRACE_RETURN_IF_ERROR(check.CheckTiers(user.each_job));
    const Quota all = config.OfUser(name);
    TERRACE_RETURN_IF_ERROR(check.CheckWithin(
        user.each_job, absl::StrCat("each job of ", name), all));
    for (const auto& [job, quota] : user.jobs) {
      TERRACE_RETURN_IF_ERROR(check.CheckTiers(quota));
      TERRACE_RETURN_IF_ERROR(check.CheckWithin(
          quota, absl::StrCat("job ", job, " of ", name), all));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
