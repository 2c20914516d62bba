#include "daemon/server/user_table.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/user_names.h"

namespace terrace {

absl::StatusOr<UserTable> UserTable::Of(const DaemonConfig& config) {
  TERRACE_RETURN_IF_ERROR(CheckUsers(config));
  UserTable table;
  table.config_ = config;
  for (const auto& [name, user] : config.users) {
    TERRACE_ASSIGN_OR_RETURN(const uid_t uid, UidOf(name));
    table.names_[uid] = name;
  }
  return table;
}

absl::Status UserTable::AddConnection(uid_t uid) {
  TERRACE_RETURN_IF_ERROR(UidOf(absl::StrCat(uid)).status());
  const Use use = Of(uid);
  if (use.connection_limit > 0 && use.connections >= use.connection_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the user ", NameOf(uid), " has ", use.connections,
                     " connections, and the limit is ", use.connection_limit));
  }
  ++connections_[uid];
  return absl::OkStatus();
}

void UserTable::RemoveConnection(uid_t uid) {
  const auto found = connections_.find(uid);
  if (found == connections_.end()) return;
  if (--found->second == 0) connections_.erase(found);
}

void UserTable::SetLimits(const UserTable& other) {
  config_ = other.config_;
  names_ = other.names_;
}

std::vector<UserTable::Use> UserTable::All() const {
  std::vector<Use> all;
  for (const auto& [uid, connections] : connections_) all.push_back(Of(uid));
  return all;
}

UserTable::Use UserTable::Of(uid_t uid) const {
  Use use = {.uid = uid};
  const auto found = connections_.find(uid);
  if (found != connections_.end()) use.connections = found->second;
  const Quota quota = config_.OfUser(NameOf(uid));
  if (quota.connections.has_value()) {
    use.connection_limit = quota.connections->count;
  }
  return use;
}

std::string UserTable::NameOf(uid_t uid) const {
  const auto found = names_.find(uid);
  return found == names_.end() ? absl::StrCat(uid) : found->second;
}

}  // namespace terrace
