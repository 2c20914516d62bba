// The users of a host by name.
//
// Functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config/daemon_config.h"

namespace terrace {

// The uid of a name, or of a uid in decimal digits, which the host need not
// know. NotFound: this host has no such user. InvalidArgument: the uid stands
// for all users that a namespace does not know, so that it is nobody's.
absl::StatusOr<uid_t> UidOf(const std::string& user);

// InvalidArgument, which names the place: UidOf has an error for a user of the
// configuration, or two of these are one user.
absl::Status CheckUsers(const DaemonConfig& config);

}  // namespace terrace
