// A path where a daemon listens: it is taken from who is gone and from nobody
// else, and what is made there is of its user, or of one group too.
//
// Functions for the thread that starts a daemon.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"
#include "daemon/wire/socket_address.h"

namespace terrace {

// Takes the lock beside the path (PATH.lock), which the kernel gives back with
// the process, and removes a socket there that nobody listens at.
// FailedPrecondition: another process listens at the path or has its lock, or
// something there is no socket; PermissionDenied, NotFound, ResourceExhausted,
// as the system has it; each names the path.
absl::StatusOr<OwnDescriptor> TakeSocketPath(const std::string& path,
                                             const SocketAddress& address);

// Binds the socket: its file has mode 0600, or with a group 0660 and that
// group. Nobody can connect before it listens. Errors name the path, where
// nothing is left then.
absl::Status BindToPath(int fd, const std::string& path,
                        const SocketAddress& address,
                        std::optional<gid_t> group);

}  // namespace terrace
