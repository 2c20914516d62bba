// The users that are connected to a daemon, and what each may have.
//
// A table belongs to one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config/daemon_config.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

class UserTable {
 public:
  struct Use {
    uid_t uid = 0;
    int64_t connections = 0;
    int64_t connection_limit = 0;
  };

  // What a user has whose quota says nothing.
  static constexpr int64_t kConnections = 64;

  // Errors are those of UidsOf and OperatorsOf (daemon/config/user_names.h).
  static absl::StatusOr<UserTable> Make(const DaemonConfig& config);

  // Whether who connected there, as `peer`, may see and do what concerns all
  // users: root, the daemon's own user, and the group of the configuration that
  // the table was made with.
  bool IsOperator(const PacketSocket& socket, const Peer& peer) const;

  // One more connection of that user. ResourceExhausted, which names the limit
  // and the use; PermissionDenied: the uid stands for users that are not known.
  absl::Status AddConnection(uid_t uid);
  void RemoveConnection(uid_t uid);

  // Another configuration holds from here on for who comes; nobody who is there
  // goes.
  void SetLimits(const UserTable& other);

  // By uid, those that are connected.
  std::vector<Use> All() const;
  // Of those that the configuration names.
  const std::map<uid_t, std::string>& names() const { return names_; }
  Use UseOf(uid_t uid) const;

 private:
  // In the terms of the configuration.
  std::string NameOf(uid_t uid) const;

  DaemonConfig config_;
  std::map<uid_t, std::string> names_;  // of those that the file names
  std::optional<gid_t> operators_;
  uid_t unknown_ = 0;  // stands for users that are not known
  std::map<uid_t, int64_t> connections_;
};

}  // namespace terrace
