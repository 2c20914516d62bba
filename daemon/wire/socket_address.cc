#include "daemon/wire/socket_address.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace terrace {

absl::StatusOr<SocketAddress> SocketAddress::Of(const std::string& path) {
  SocketAddress made;
  made.address_.sun_family = AF_UNIX;
  // The last byte stays zero. A name that begins with zero is none of a file.
  const size_t most = sizeof(made.address_.sun_path) - 1;
  if (path.empty() || path.size() > most || path.find('\0') != path.npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "': the path of a socket has 1 to ", most, " bytes"));
  }
  std::memcpy(made.address_.sun_path, path.data(), path.size());
  return made;
}

OwnDescriptor MakePacketSocket(bool blocks) {
  const ForkPause pause;
  const int kind = SOCK_SEQPACKET | SOCK_CLOEXEC | (blocks ? 0 : SOCK_NONBLOCK);
  const int fd = socket(AF_UNIX, kind, 0);
  return fd < 0 ? OwnDescriptor() : OwnDescriptor::Of(fd);
}

void RefuseDescriptors(int fd) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which headers may lack
  const int off = 0;
  setsockopt(fd, SOL_SOCKET, kPassRights, &off, sizeof(off));
}

}  // namespace terrace
