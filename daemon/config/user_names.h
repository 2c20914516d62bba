// The users and groups of a host by name.
//
// Functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config/daemon_config.h"

namespace terrace {

// The uid of a name, or of a uid in decimal digits, which the host need not
// know. NotFound: this host has no such user. InvalidArgument: the uid stands
// for all users that a namespace does not know, so that it is nobody's.
absl::StatusOr<uid_t> UidOf(const std::string& user);

// The gid of a group's name, or of one in decimal digits. NotFound: this host
// has no such group.
absl::StatusOr<gid_t> GidOf(const std::string& group);

// Of the configuration's `group`; nothing: it names none. InvalidArgument,
// which names the place: this host has no such group.
absl::StatusOr<std::optional<gid_t>> GroupOf(const DaemonConfig& config);

// InvalidArgument, which names the place: UidOf has an error for a user of the
// configuration, or two of these are one user.
absl::Status CheckUsers(const DaemonConfig& config);

}  // namespace terrace
