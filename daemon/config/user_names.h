// The users and groups of a host by name.
//
// Functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
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
// has no such group. InvalidArgument: the number that stands for none.
absl::StatusOr<gid_t> GidOf(const std::string& group);

// Of the configuration's `group`; nothing: it names none. InvalidArgument,
// which names the place: this host has no such group.
absl::StatusOr<std::optional<gid_t>> GroupOf(const DaemonConfig& config);

// Likewise of its `operators`.
absl::StatusOr<std::optional<gid_t>> OperatorsOf(const DaemonConfig& config);

// Who stands for all users that a namespace does not know.
uid_t OverflowUid();

// The names of the configuration's users, by uid. InvalidArgument, which names
// the place: UidOf has an error for one, or two of them are one user.
absl::StatusOr<std::map<uid_t, std::string>> UidsOf(const DaemonConfig& config);

// The user in the terms of a configuration whose names these are: its name
// there, or its uid.
std::string UserIn(const std::map<uid_t, std::string>& names, uid_t uid);

}  // namespace terrace
