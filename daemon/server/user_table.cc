#include "daemon/server/user_table.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/user_names.h"

namespace terrace {

absl::StatusOr<UserTable> UserTable::Make(const DaemonConfig& config) {
  UserTable table;
  TERRACE_ASSIGN_OR_RETURN(table.names_, UidsOf(config));
  TERRACE_ASSIGN_OR_RETURN(table.operators_, OperatorsOf(config));
  table.config_ = config;
  table.unknown_ = OverflowUid();
  return table;
}

bool UserTable::IsOperator(const PacketSocket& socket, const Peer& peer) const {
  if (peer.uid == 0 || peer.uid == geteuid()) return true;
  return operators_.has_value() && socket.IsPeerOf(*operators_);
}

absl::Status UserTable::AddConnection(uid_t uid) {
  if (uid == unknown_) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the uid ", uid, " stands for all users that are not known here"));
  }
  const Use use = UseOf(uid);
  if (use.connections >= use.connection_limit) {
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
  for (const auto& [uid, connections] : connections_) all.push_back(UseOf(uid));
  return all;
}

UserTable::Use UserTable::UseOf(uid_t uid) const {
  Use use = {.uid = uid, .connection_limit = kConnections};
  const auto found = connections_.find(uid);
  if (found != connections_.end()) use.connections = found->second;
  const Quota quota = config_.OfUser(NameOf(uid));
  if (quota.connections.has_value()) {
    use.connection_limit = quota.connections->count;
  }
  return use;
}

std::string UserTable::NameOf(uid_t uid) const { return UserIn(names_, uid); }

}  // namespace terrace
