// Where a Unix socket stands in the file system, as connect(2) and bind(2) take
// it.
//
// Plain values; thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

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

}  // namespace terrace
