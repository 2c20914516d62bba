#include "daemon/config/user_names.h"

#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/table_reader.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// What getpwnam_r(3) and getgrnam_r(3) have in common: an entry and the room
// for its texts, which grows until it is enough.
template <typename Entry, typename Function>
absl::StatusOr<Entry> LookUp(Function function, absl::string_view what,
                             const std::string& name) {
  std::vector<char> buffer(1024);
  Entry entry{};
  Entry* found = nullptr;
  int error = ERANGE;
  while (error == ERANGE && buffer.size() <= (1u << 20)) {
    buffer.resize(2 * buffer.size());
    error =
        function(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  }
  if (found != nullptr) return entry;
  return absl::NotFoundError(
      error == 0 ? absl::StrCat("this host has no ", what, " ", name)
                 : absl::StrCat("the ", what, " ", name,
                                " cannot be looked up: ", ErrnoName(error)));
}

absl::StatusOr<std::optional<gid_t>> GroupAt(const DaemonConfig& config,
                                             const std::string& name,
                                             const TextPosition& position) {
  if (name.empty()) return std::nullopt;
  const absl::StatusOr<gid_t> group = GidOf(name);
  if (group.ok()) return *group;
  return ErrorAt(config.file, position, group.status().message());
}

}  // namespace

uid_t OverflowUid() {
  uid_t uid = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid;
}

absl::StatusOr<uid_t> UidOf(const std::string& user) {
  uint32_t number = 0;
  uid_t uid = 0;
  if (absl::SimpleAtoi(user, &number)) {
    uid = number;
  } else {
    TERRACE_ASSIGN_OR_RETURN(const passwd entry,
                             LookUp<passwd>(getpwnam_r, "user", user));
    uid = entry.pw_uid;
  }
  if (uid == UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("the uid ", uid, " is no user's"));
  }
  if (uid != OverflowUid()) return uid;
  return absl::InvalidArgumentError(absl::StrCat(
      "the uid ", uid, " stands for all users that are not known here"));
}

absl::StatusOr<gid_t> GidOf(const std::string& group) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(group, &number)) {
    if (number != UINT32_MAX) return number;
    return absl::InvalidArgumentError(
        absl::StrCat("the gid ", number, " is no group's"));
  }
  TERRACE_ASSIGN_OR_RETURN(const struct group entry,
                           LookUp<struct group>(getgrnam_r, "group", group));
  return entry.gr_gid;
}

absl::StatusOr<std::optional<gid_t>> GroupOf(const DaemonConfig& config) {
  return GroupAt(config, config.service.group, config.service.group_position);
}

absl::StatusOr<std::optional<gid_t>> OperatorsOf(const DaemonConfig& config) {
  return GroupAt(config, config.service.operators,
                 config.service.operators_position);
}

absl::StatusOr<std::map<uid_t, std::string>> UidsOf(
    const DaemonConfig& config) {
  std::map<uid_t, std::string> names;
  for (const auto& [name, user] : config.users) {
    const absl::StatusOr<uid_t> uid = UidOf(name);
    if (!uid.ok()) {
      return ErrorAt(config.file, user.position, uid.status().message());
    }
    const auto [before, is_new] = names.try_emplace(*uid, name);
    if (is_new) continue;
    return ErrorAt(config.file, user.position,
                   absl::StrCat("users.", name, " and users.", before->second,
                                " are both the uid ", *uid));
  }
  return names;
}

std::string UserIn(const std::map<uid_t, std::string>& names, uid_t uid) {
  const auto found = names.find(uid);
  return found == names.end() ? absl::StrCat(uid) : found->second;
}

}  // namespace terrace
