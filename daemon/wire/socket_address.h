// Where a Unix socket stands in the file system, as connect(2) and bind(2) take
// it.
//
// Plain values; thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"

namespace terrace {

class SocketAddress {
 public:
  // InvalidArgument: the path is empty or longer than such an address.
  static absl::StatusOr<SocketAddress> Of(const std::string& path);

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  socklen_t size() const { return sizeof(address_); }

 private:
  sockaddr_un address_ = {};
};

// A new socket of sequenced packets, which children of this process do not
// have. It sets errno if it is not ok().
OwnDescriptor MakePacketSocket(bool blocks);

// Has the kernel refuse descriptors to who sends them, where it can (Linux
// 6.16): else they are let go of as they are received. What is accepted by a
// socket that listens inherits it.
void RefuseDescriptors(int fd);

// A path where a daemon listens is taken from who is gone and from nobody else,
// and what is made there is of its user, or of one group too. These are for the
// thread that starts a daemon.

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
